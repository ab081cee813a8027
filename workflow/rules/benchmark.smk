# How fast is it with and without speculation, and is the text the same? The cells are measured by `rule server`.


rule benchmark:
    input:
        expand(rules.server.output, server=SERVERS),
