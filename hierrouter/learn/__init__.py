"""Learning: routers from the cached tree.

In the order of reading:

    config, objective                            the numbers, and what is trained for
    states, router                               what a router reads, and the network
    folds, loop                                  what every training has in common
    ppo, algorithm, optimiser                    learning from sampled episodes
    enumeration, values                          learning by enumeration
    training, trained, origin                    a router for one alpha
    alpha_router, conditioned, sweep, budget     routers for every alpha
    featured, known, dynamic                     a policy for pools that change
    limits, deferral                             a limit on each query, a stronger model in doubt
    checkpoint, description, tensor_file         files of what was trained
    resume                                       files of a training that goes on
"""
