# Claimed, offline and served acceptance, and the time per iteration: where is the loss?


rule diagnosis:
    input:
        validation=rules.validate.output,
        accuracy=rules.accuracy.output,
        benchmark=rules.benchmark.input,
    output:
        json=f"{RESULTS}/diagnosis.json",
        markdown=f"{RESULTS}/diagnosis.md",
    log:
        f"{RESULTS}/logs/diagnosis.log",
    params:
        code=code_digest("draftproof.diagnosis.command"),
        results=RESULTS,
        claimed=shlex.quote(json.dumps(config["draft"].get("claimed"))),
    shell:
        "draftproof --log {log} diagnose --results {params.results} --claimed {params.claimed}"
