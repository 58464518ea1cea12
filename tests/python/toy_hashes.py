# SPDX-License-Identifier: Apache-2.0
"""What vLLM says of a GPU block by giving it a hash: that it holds the KV of these tokens.

vLLM gives the hash when it schedules the computation. `HashCheck` looks, behind each step, whether it was computed.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from toy_states import WrongKvError
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request, RequestStatus

if TYPE_CHECKING:
    from toy_engine import ToyEngine

# vLLM's own faults, as `HashCheck.faults` names them.
PREEMPTED_WHILE_SCHEDULED = "hashed, and preempted in the same scheduling pass (policy priority)"
TOKEN_OF_ANOTHER_STEP = "a synchronous load failed, and the next step's token was taken for the failed one's"


class HashCheck:
    """Compares each block that got a hash since the last look with what has to be in it.

    Attributes
    ----------
    lost_track
        Requests whose synchronous load failed with asynchronous scheduling: vLLM and its workers do not agree on their
        tokens any more.
    faults
        Of vLLM, in order: what it was, and the block. The block is bad from there on (`ToyModel.bad_blocks`); a tier
        must not have it.

    """

    def __init__(self, engine: "ToyEngine") -> None:
        self._engine = engine
        self._seen: list[Any] = [None] * engine.spec.num_blocks
        self._loading: set[str] = set()
        # With the hash that each had when it was found.
        self._late: list[tuple[Any, tuple[int, int, list[int], int, Request]]] = []
        self.lost_track: set[str] = set()
        self.faults: list[tuple[str, int]] = []

    def before_output(self, invalid_block_ids: set[int]) -> None:
        """Take note of the running requests that lose what they loaded."""
        scheduler = self._engine.scheduler
        for request in scheduler.running if invalid_block_ids and self._engine.spec.async_scheduling else ():
            blocks = scheduler.kv_cache_manager.get_block_ids(request.request_id)
            if any(not invalid_block_ids.isdisjoint(group) for group in blocks):
                self.lost_track.add(request.request_id)

    def before_execution(self) -> None:
        """Take note of the blocks that loads were given: nothing that is known of them holds."""
        scheduler = self._engine.scheduler
        loading = {
            request.request_id
            for request in scheduler.requests.values()
            if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        }
        for request_id in loading - self._loading:
            blocks = {block for group in scheduler.kv_cache_manager.get_block_ids(request_id) for block in group}
            blocks = {
                block for block in blocks if scheduler.kv_cache_manager.block_pool.blocks[block].block_hash is None
            }
            for worker in self._engine.workers:
                worker.model.bad_blocks -= blocks
        self._loading = loading

    def check(self, output: SchedulerOutput | None = None) -> None:
        """Look at all blocks behind the execution of a step, or behind the taking in of its `output` (None).

        Raises
        ------
        WrongKvError
            A block has a hash and not the KV, and none of vLLM's known faults is the reason.

        """
        late, self._late = self._late, []
        blocks = self._engine.scheduler.kv_cache_manager.block_pool.blocks
        for block_hash, late_one in late if output is not None else ():
            # A request that was preempted meanwhile may have lost the block to another one.
            if blocks[late_one[0]].block_hash is block_hash:
                self._compare(*late_one, None)
        if output is None:
            self._late = late
        for block in blocks:
            block_hash = block.block_hash
            if block_hash is self._seen[block.block_id]:
                continue
            self._seen[block.block_id] = block_hash
            if block_hash is None or not self._engine.workers[0].model.check_kv:
                continue
            group = int.from_bytes(block_hash[-4:], "big")
            found = self._owner(block_hash[:-4])
            if found is None:
                continue  # A session took the hash back, or the tokens do not tell what the KV is of.
            request, index = found
            tokens = request.all_token_ids[: (index + 1) * self._engine.hash_tokens]
            managers = self._engine.scheduler.kv_cache_manager.coordinator.single_type_managers
            # With states beside tokens that ranks divide, a block may have the hash of its beginning.
            number = (len(tokens) - 1) // managers[group].block_size
            one = (block.block_id, group, tokens, number, request)
            if self._settles_late(group):
                self._late.append((block_hash, one))
            else:
                self._compare(*one, output)

    def _settles_late(self, group: int) -> bool:
        """Whether a block of that group has its content only behind the next step's start."""
        return bool(self._engine.spec.num_drafts) and group in self._engine.state_groups

    def _compare(
        self,
        block: int,
        group: int,
        tokens: list[int],
        index: int,
        request: Request,
        output: SchedulerOutput | None,
    ) -> None:
        models = [worker.model for worker in self._engine.workers]
        if block in models[0].bad_blocks or all(model.has(group, block, tokens, index) for model in models):
            return
        fault = self._known_fault(tokens, output)
        if request.request_id in self.lost_track and len(tokens) > request.num_prompt_tokens:
            fault = TOKEN_OF_ANOTHER_STEP
        if fault is None:
            raise WrongKvError(
                f"vLLM's cache has block {block} of group {group} as the {index}-th of {tokens[:4]}..., and it does "
                f"not hold that; preempted: {output and output.preempted_req_ids}"
            )
        self.faults.append((fault, block))
        for model in models:
            model.bad_blocks.add(block)

    def _known_fault(self, tokens: list[int], output: SchedulerOutput | None) -> str | None:
        if output is None:
            return None
        for request_id in output.preempted_req_ids or ():
            request = self._engine.scheduler.requests.get(request_id)
            if request is None or request_id in output.num_scheduled_tokens:
                continue
            if request.all_token_ids[: len(tokens)] == tokens:
                return PREEMPTED_WHILE_SCHEDULED
        return None

    def _owner(self, block_hash: bytes) -> tuple[Request, int] | None:
        """Find a request that has the hash, and the hash's number there."""
        for request in (*self._engine.scheduler.requests.values(), *self._engine.requests.values()):
            if request.lora_request is not None or request.mm_features:
                continue
            with suppress(ValueError):
                return request, request.block_hashes.index(block_hash)
        return None
