from concurrent.futures import ThreadPoolExecutor

import torch

from hierrouter.engines.devices import lone_thread, torch_threads


def test_in_a_lone_thread_torch_uses_no_other() -> None:
    with torch_threads(2):
        with lone_thread("alone") as alone, ThreadPoolExecutor(1) as other:
            many = torch.ones(300, 300)
            alone.submit(torch.matmul, many, many).result()
            assert alone.submit(torch.get_num_threads).result() == 1
            assert other.submit(torch.get_num_threads).result() == 2
        assert torch.get_num_threads() == 2


def test_the_number_is_as_before_after_an_error() -> None:
    before = torch.get_num_threads()
    try:
        with torch_threads(before + 1):
            assert torch.get_num_threads() == before + 1
            raise KeyError
    except KeyError:
        assert torch.get_num_threads() == before
