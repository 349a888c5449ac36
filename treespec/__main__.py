"""``python -m treespec`` is ``treespec``."""

from treespec.cli import main

main()
