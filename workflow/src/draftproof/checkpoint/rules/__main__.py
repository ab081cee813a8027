"""Print the page that lists every rule: python -m draftproof.checkpoint.rules > workflow/checkpoint-rules.md."""

import sys

from draftproof.checkpoint.findings import page

if __name__ == "__main__":
    sys.stdout.write(page())
