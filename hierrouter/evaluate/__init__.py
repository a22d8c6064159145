"""Evaluation: exact values, bounds, intervals.

Arrays in, numbers out; nothing here trains, reads a file or prints. In the order of reading:

    outcome, exact, reach                        a policy's Q and C on each query, and its calls
    policies                                     anybody's policy, asked and valued
    bounds, ladder, information                  what a router has to beat, and what it cannot
    frontier, hulls                              cost against quality: of policies, of queries
    metrics, pairs                               single numbers, each with its definition
    budget, ceilings                             the best within a budget; calls that keep one
    regret, repair, depth                        where a policy loses, and when a call helps
    contribution, price_mix                      what each model of a pool is worth
    deferral                                     a stronger model in doubt
    bootstrap, simultaneous, crossed, gap        intervals: other queries, seeds, many at once
    power                                        how many queries a difference needs
"""
