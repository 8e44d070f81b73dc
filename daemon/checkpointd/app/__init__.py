"""The composition root: every object is built here, by hand; and here is the order of start and stop.

``rooms``   an opened store and everything that is built on it: what a command works with
``crew``    the four passes over one set of rooms, with the keeper of their leases
``daemon``  the long-running process: schedule, signals, endpoint, and how it winds down
"""
