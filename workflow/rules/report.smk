# Let a person see it: one HTML file.


rule report:
    input:
        rules.diagnosis.output,
        rules.preflight.output,
    output:
        f"{RESULTS}/report/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    params:
        code=code_digest("draftproof.report.command"),
        results=RESULTS,
    shell:
        "draftproof --log {log} report --results {params.results}"
