"""Routers: how they learn, and the baselines they are compared with.

`training` trains a router for one alpha, `sweep` fits one for every alpha. There are three
algorithms, one file each: `ppo`, `exact` and `value`. `config` holds their settings; `network` what
the first two share, `resumption` the state from which an interrupted one goes on, and `forward` the
trained network without torch. `own_algorithm` takes a user's factory of any other algorithm of
Tianshou, and `own_learner` drives it. `deferral` decides when a router passes a query on to a
stronger model.
"""
