# What does the target itself say and feel on these prompts?

PROMPTS = config["prompts"]


rule capture:
    input:
        target=f"{TARGET}/config.json",
        validation=rules.validate.output,
        prompts=[] if PROMPTS["source"] == "builtin" else PROMPTS["source"],
    output:
        f"{RESULTS}/capture/manifest.json",
    log:
        f"{RESULTS}/logs/capture.log",
    threads: workflow.cores
    params:
        code=code_digest("draftproof.capture.command"),
        target=TARGET,
        prompts=" ".join(
            f"--{name} {shlex.quote(str(value))}"
            for name, value in {
                "prompts": PROMPTS["source"],
                "shape": PROMPTS.get("shape", "auto"),
                "split": PROMPTS.get("split"),
                "limit": PROMPTS.get("limit"),
            }.items()
            if value is not None
        ),
        max_new_tokens=config["capture"]["max_new_tokens"],
        dtype=config["capture"]["dtype"],
        directory=RESULTS / "capture",
    shell:
        "draftproof --log {log} capture --target {params.target:q} --validation {input.validation}"
        " {params.prompts} --max-new-tokens {params.max_new_tokens} --dtype {params.dtype}"
        " --out {params.directory}"
