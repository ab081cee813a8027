# Will the engine read this draft as it was trained?


rule validate:
    # Exit code 1 is an answer ("no"): it is kept in the file, and `convert` refuses to go on.
    input:
        draft=checkpoint_files(DRAFT),
        # The demo makes its target itself, later than this is read.
        target=(
            f"{TARGET}/config.json"
            if TARGET == DEMO_TARGET
            else checkpoint_files(TARGET)
        ),
    output:
        f"{RESULTS}/checkpoint/validation.json",
    log:
        f"{RESULTS}/logs/validate.log",
    params:
        code=code_digest("draftproof.checkpoint.validate"),
        engine=ENGINE,
        draft=DRAFT,
        target=TARGET,
    shell:
        "draftproof --log {log} validate --draft {params.draft:q} --target {params.target:q}"
        " --engine {params.engine:q} --json {output} || [ $? -eq 1 ]"


rule convert:
    input:
        draft=checkpoint_files(DRAFT),
        validation=rules.validate.output,
    output:
        f"{SERVED_DRAFT}/conversion.json",
    log:
        f"{RESULTS}/logs/convert.log",
    params:
        code=code_digest("draftproof.checkpoint.convert"),
        engine=ENGINE,
        draft=DRAFT,
        target=TARGET,
        directory=SERVED_DRAFT,
    shell:
        "draftproof --log {log} convert --draft {params.draft:q} --target {params.target:q}"
        " --validation {input.validation} --engine {params.engine:q} --out {params.directory}"


rule checkpoint:
    input:
        rules.validate.output,
        rules.convert.output,
