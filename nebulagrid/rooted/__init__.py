"""The control plane started by root: it runs as a system account of its own, jobs run as another one, and only what needs root keeps it.

`manage.py` comes here before Django is loaded, as long as it is root (`entry.begin`). Standard library only, and of this project only
what is made of that: nothing here reads a file that the system account could have written as if it were root's own.
"""
