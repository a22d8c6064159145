"""Routers: how they learn, and the baselines they are compared with.

`config` holds the settings, `network` the model, `loop` the epochs; `ppo` and `exact` train the
network, `value` is fitted in closed form. `training` trains a router for one alpha, `sweep` fits
one for every alpha.
"""
