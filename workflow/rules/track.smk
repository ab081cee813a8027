# Tell MLflow about the results. Nothing is read back from it: `snakemake track --forcerun track` rebuilds it.


rule track:
    input:
        rules.report.output,
    output:
        f"{RESULTS}/track.json",
    log:
        f"{RESULTS}/logs/track.log",
    localrule: True
    params:
        code=code_digest("draftproof.track.command"),
        results=RESULTS,
        tracking=TRACKING,
    shell:
        "draftproof --log {log} track --results {params.results}"
        " --uri {params.tracking[uri]} --experiment {params.tracking[experiment]}"
