# SPDX-License-Identifier: Apache-2.0
"""What a request whose load failed must not do to others."""

from typing import Any

from harness import prompt_of
from scenarios import PROMPTS, Make, again, assert_at_rest, leave_to_the_tier, store_all


def test_behind_a_failed_load_a_lookup_is_put_off_and_the_prefix_computed(make: Make, is_async: bool) -> None:
    # Else vLLM may keep the request, which has no blocks any more, in front of those that hold them, for ever.
    for nth in range(1, 100):
        engine = make({"host_link": {"fail_nth": nth}}, async_scheduling=is_async)
        store_all(engine)
        connector = engine.scheduler.connector
        look_up = connector.get_num_new_matched_tokens
        answers: dict[str, list[int | None]] = {}

        def spy(request: Any, num_computed_tokens: int, look_up: Any = look_up, answers: Any = answers) -> Any:
            answer = look_up(request, num_computed_tokens)
            answers.setdefault(request.request_id, []).append(answer[0])
            return answer

        connector.get_num_new_matched_tokens = spy
        engine.generate(again("2"))
        engine.settle_stores()
        assert_at_rest(engine)
        if engine.failed_loads:
            break
    assert engine.failed_loads, "no run failed a load: nothing was shown"
    assert set(answers) == {f"{request_id}2" for request_id in PROMPTS}
    for request_id, found in answers.items():
        assert found[0], "its blocks are in the tier"
        assert found.count(None) == engine.failed_loads.count(request_id)
        if request_id in engine.failed_loads:
            assert found[1] is None
            assert set(found[2:]) == {0}


def test_a_preempted_request_does_not_wait_for_room_that_a_failed_load_keeps_reserved(make: Make) -> None:
    # vLLM goes on to reserve room for `failed`, which has lost its blocks, and puts `preempted` in front of it.
    for nth in range(1, 100):
        engine = make({"host_link": {"fail_nth": nth}}, num_blocks=18, max_model_len=250)
        engine.generate({"stored": prompt_of(1, 170)}, 1)
        leave_to_the_tier(engine)
        engine.add("grows", prompt_of(3, 20), 160)
        engine.add("failed", prompt_of(1, 170), 4)
        preempted = engine.add("preempted", prompt_of(2, 150), 60)
        engine.run()
        assert_at_rest(engine)
        if engine.failed_loads and preempted.num_preemptions:
            break
    assert engine.failed_loads == ["failed"], "no run failed a load: nothing was shown"
    assert preempted.num_preemptions > 0
