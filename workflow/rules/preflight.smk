# Can this machine, image and driver run the experiment at all?


rule preflight:
    output:
        f"{RESULTS}/preflight.json",
    log:
        f"{RESULTS}/logs/preflight.log",
    params:
        code=code_digest("draftproof.preflight.command"),
        engine=ENGINE,
        device=DEVICE,
    shell:
        # Exit code 1 is an answer: it is kept in the file, and `serve` refuses to go on.
        "draftproof --log {log} preflight --engine {params.engine:q} --device {params.device} --json {output}"
        " || [ $? -eq 1 ]"
