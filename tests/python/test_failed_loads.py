# SPDX-License-Identifier: Apache-2.0
"""What a request whose load failed must not do to others."""

from typing import Any

from scenarios import PROMPTS, Make, again, assert_at_rest, store_all


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
