# How many draft tokens would be accepted, before any server runs?


rule accuracy:
    input:
        manifest=rules.capture.output,
        conversion=rules.convert.output,
    output:
        accuracy=f"{RESULTS}/accuracy/accuracy.json",
        wiring=f"{RESULTS}/accuracy/wiring.json",
    log:
        f"{RESULTS}/logs/accuracy.log",
    threads: workflow.cores
    params:
        code=code_digest("draftproof.accuracy.command"),
        target=TARGET,
        draft=SERVED_DRAFT,
        samples=RESULTS / "capture",
        steps=config["accuracy"]["steps"],
        trees=[f"--tree {tree}" for tree in trees(config)],
    shell:
        "draftproof --log {log} accuracy --draft {params.draft:q} --target {params.target:q}"
        " --samples {params.samples} --steps {params.steps} {params.trees}"
        " --json {output.accuracy} --wiring {output.wiring}"
