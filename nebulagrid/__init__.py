"""Wiring. Light on purpose: the supervisor and the test lanes import this package without Django or Celery."""
