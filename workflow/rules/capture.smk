# What does the target itself say and feel on these prompts?

PROMPTS = config["prompts"]
THROUGH_SERVER = config["capture"].get("source") == "sglang"


rule capture:
    # With source sglang, a server of its own runs around the capture.
    input:
        preflight=rules.preflight.output if THROUGH_SERVER else [],
        target=f"{TARGET}/config.json",
        validation=rules.validate.output,
        prompts=[] if PROMPTS["source"] == "builtin" else PROMPTS["source"],
    output:
        f"{RESULTS}/capture/manifest.json",
    log:
        f"{RESULTS}/logs/capture.log",
    threads: workflow.cores
    resources:
        engine=int(THROUGH_SERVER),
    params:
        code=code_digest("draftproof.capture.command"),
        server=capture_server if THROUGH_SERVER else "",
        source=(
            f"--source sglang --launch {CAPTURE_SERVER}/launch.json"
            if THROUGH_SERVER
            else ""
        ),
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
        "draftproof --log {log} {params.server} capture {params.source} --target {params.target:q} --validation {input.validation}"
        " {params.prompts} --max-new-tokens {params.max_new_tokens} --dtype {params.dtype}"
        " --out {params.directory}"
