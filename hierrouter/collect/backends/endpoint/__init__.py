"""The openai engine: any OpenAI-compatible server.

    engine        names a model, loads it, makes the calls of a level
    caller        one model's requests, whole or as a stream
    client        one connection pool, one body or one error
    served        is this the server that has the model?
    completion    what a body says
    refusals      what an error means
    patience      waiting, trying again, giving up
    token_counts  for servers that send no usage

vLLM, llama.cpp, Ollama, TGI, `transformers serve` and hosted ones, through chat completions.
"""
