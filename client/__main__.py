"""``python -m client`` is nebula-ctl."""

from client.ctl import main

main()
