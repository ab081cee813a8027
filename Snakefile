# The chain, in order. Each stage leaves its answer in results/<experiment>/ and the next one reads it.
#
#   preflight.json                     can this machine run the experiment at all?
#   checkpoint/validation.json, draft/ will the engine read this draft as it was trained?
#   capture/                           what does the target itself say and feel on these prompts?
#   accuracy/                          how many draft tokens would be accepted, before any server runs?
#   serving/<server>/                  does the server run with the settings that were asked for?
#   benchmark/<cell>/                  how fast is it, and is the text the same?
#   diagnosis.json                     claimed, offline and served: where is the loss?
#   report/report.html, track.json     let a person see it
#
# One stage: `snakemake accuracy`. One experiment, one file: `snakemake --configfile workflow/presets/<name>.yaml`.

from snakemake.utils import min_version

min_version("9.27")

if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


include: "workflow/rules/experiment.smk"
include: "workflow/rules/demo.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/checkpoint.smk"
include: "workflow/rules/capture.smk"
include: "workflow/rules/accuracy.smk"
include: "workflow/rules/serving.smk"
include: "workflow/rules/benchmark.smk"
include: "workflow/rules/diagnosis.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/track.smk"


rule all:
    default_target: True
    input:
        rules.preflight.output,
        rules.checkpoint.input,
        rules.capture.output,
        rules.accuracy.output,
        rules.benchmark.input,
        rules.diagnosis.output,
        rules.report.output,
        rules.track.output,


onerror:
    # Whatever was finished is worth seeing; a tracker that is away must not hide the real error.
    shell(
        "draftproof track --partial --results {RESULTS} --uri {TRACKING[uri]} --experiment {TRACKING[experiment]} || true"
    )
