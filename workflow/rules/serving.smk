# Does the server run with the settings that were asked for?


wildcard_constraints:
    server="|".join(SERVERS),


rule server:
    # One launch and its benchmark cells. Finished cells lie beside the declared output, so that a job that
    # fails takes none of them away; `--owner` ends the server when Snakemake itself is killed.
    input:
        preflight=rules.preflight.output,
        manifest=rules.capture.output,
        conversion=rules.convert.output,
    output:
        f"{RESULTS}/benchmark/{{server}}.json",
    log:
        f"{RESULTS}/logs/server-{{server}}.log",
    threads: workflow.cores
    resources:
        engine=1,
    params:
        code=code_digest(
            "draftproof.serving.command",
            "draftproof.benchmark.command",
            "draftproof.cpu_engine.plugin",
        ),
        engine=ENGINE,
        device=DEVICE,
        target=TARGET,
        draft=SERVED_DRAFT,
        arm=lambda wildcards: SERVERS[wildcards.server]["arm"],
        flags=server_flags,
        environment=server_environment,
        serving=RESULTS / "serving",
        samples=RESULTS / "capture",
        store=RESULTS / "benchmark",
        concurrency=config["benchmark"]["concurrency"],
        warmup=config["benchmark"]["warmup_requests"],
    shell:
        "draftproof --log {log} serve --server {wildcards.server} --arm {params.arm}"
        " --target {params.target:q} --draft {params.draft:q} --engine {params.engine:q} --device {params.device}"
        " --flags {params.flags:q} --environment {params.environment:q} --preflight {input.preflight} --owner $PPID"
        " --out {params.serving}/{wildcards.server}"
        " -- draftproof bench --launch {params.serving}/{wildcards.server}/launch.json --samples {params.samples}"
        " --concurrency {params.concurrency} --warmup {params.warmup} --store {params.store} --out {output}"


rule serving:
    input:
        expand(rules.server.output, server=SERVERS),
