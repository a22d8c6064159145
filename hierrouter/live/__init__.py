"""Live: new questions, routed by a trained policy.

In the order of reading:

    router, routed, way                  one question, and what its route was
    policy, bundle, runs                 the policy, and the files that it is read from
    deployment, loading                  what a run left, and the models of its pool loaded
    models, batched, served              a model that is ready for one prompt at a time
    conversation, asking, together       chat messages, many questions, decisions taken together
    piped                                questions that come by a pipe
"""
