"""The mistakes of :mod:`infra.mutants`, and for each the cheapest tests of ``make test`` that fail with it.

A piece of source is as short as it can be while it is the only one of its kind, and none of it is a sentence for
people: those are reworded. Where a piece has changed, write it as the code has it now; where a test has gone, name
another that fails, and not none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

KINDS = ("lease", "bundle", "checksum", "resume", "names", "bounds", "memory", "restore")
TAKEOVER = "tests/manage/test_takeover.py"
BUNDLE = "tests/core/storage/test_bundle.py"
COMMIT = "tests/streaming/test_commit.py"
LOOP = "tests/core/runs/test_loop.py"
PARTS = "tests/core/execution/test_reduction.py::test_parts_of_another_pass_or_rotten_ones_are_not_used"
MIXED = "tests/core/algorithms/test_mixed_precision.py"
LEVELS = "tests/theory/certificates/test_levels.py"
PLAN = "tests/planning/test_plan.py"
RULES = "tests/privacy/runs/test_public_rules.py"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A mistake: ``instead`` is written in the place of ``found``, and each of ``tests`` must fail.

    ``hangs``: some of the tests never end with it, which else is no failure.
    """

    name: str
    kind: str
    mistake: str
    found: str
    instead: str
    tests: tuple[str, ...]
    hangs: bool = False

    def made(self, sources: Mapping[Path, str]) -> tuple[Path, str]:
        """Find the one file of ``sources`` that holds the piece, and make the mistake in its text.

        Raises
        ------
        LookupError
            None does, or the piece is there more than once.
        SyntaxError
            The text cannot be compiled.
        """
        held = {path: count for path, text in sources.items() if (count := text.count(self.found))}
        if sum(held.values()) != 1:
            where = ", ".join(f"{count} times in {path}" for path, count in held.items()) or "nowhere"
            raise LookupError(
                f"mutant {self.name}: its piece of source must be in npmdask/ exactly once, and is {where}: write the "
                f"piece as the code has it now, with more around it if it is not the only one\n{self.found}"
            )
        (path,) = held
        text = sources[path].replace(self.found, self.instead)
        compile(text, str(path), "exec")
        return path, text


def sources_of(package: Path) -> dict[Path, str]:
    """Return the text of every file of a package."""
    return {path: path.read_text() for path in sorted(package.rglob("*.py"))}


MUTANTS = (
    # Who may write.
    Mutant(
        name="published unchecked",
        kind="lease",
        mistake="a process publishes without comparing the epoch under the lock: one that woke up commits a lost turn",
        found="        with self._exclusive(None):\n            self.require()\n            yield\n",
        instead="        with self._exclusive(None):\n            yield\n",
        tests=(f"{TAKEOVER}::test_no_row_of_a_stream_is_lost_or_used_twice[6]",),
    ),
    Mutant(
        name="shared lock",
        kind="lease",
        mistake="the lock is taken so that others can take it too: two processes write into one store",
        found="        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except BlockingIOError:",
        instead="        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)\n    except BlockingIOError:",
        tests=(f"{TAKEOVER}::test_a_store_is_taken_after_so_much_silence_and_not_before",),
    ),
    Mutant(
        name="taken too early",
        kind="lease",
        mistake="one late sign of life counts as a hang: a busy machine takes runs from processes that work",
        found="(age >= STALE or _is_fenced(holder, around))",
        instead="(age >= BEAT or _is_fenced(holder, around))",
        tests=(f"{TAKEOVER}::test_a_store_is_taken_after_so_much_silence_and_not_before",),
    ),
    Mutant(
        name="epoch not counted",
        kind="lease",
        mistake="taking a store does not change its epoch: its first owner never learns that it has lost it",
        found="self._epoch = self._read_epoch() + 1",
        instead="self._epoch = self._read_epoch()",
        tests=(f"{TAKEOVER}::test_a_stage_is_lost_with_its_job",),
    ),
    Mutant(
        name="stage without its job",
        kind="lease",
        mistake="a stage asks for its own epoch only: it goes on in a job that another process has taken",
        found="owned = [self, *(other for other in self.around if other.held)]",
        instead="owned = [self]",
        tests=(f"{TAKEOVER}::test_a_stage_is_lost_with_its_job",),
    ),
    # What is there whole or not at all.
    Mutant(
        name="arrays not flushed",
        kind="bundle",
        mistake="a bundle gets its name before its arrays are on disk: a power cut leaves a checkpoint of zeros",
        found="for name in (*files, MANIFEST):",
        instead="for name in (MANIFEST,):",
        tests=(f"{BUNDLE}::test_a_bundle_is_on_disk_before_it_has_its_name",),
    ),
    Mutant(
        name="seal not compared",
        kind="bundle",
        mistake="a manifest has a checksum of its own, which is read and not compared",
        found="found[1]\n    if crc32c_bytes(body) != int(crc, 16):",
        instead="found[1]\n    if not int(crc, 16):",
        tests=(f"{BUNDLE}::test_a_changed_digit_of_an_array_in_the_manifest_is_seen",),
    ),
    Mutant(
        name="first array only",
        kind="bundle",
        mistake="of several arrays only the first is compared with its checksum",
        found="found = _sum_of(file) if stays else crc32c_bytes(data)",
        instead="found = _sum_of(file) if stays else crc if name != next(iter(files)) else crc32c_bytes(data)",
        tests=(PARTS,),
    ),
    Mutant(
        name="mapped array unchecked",
        kind="bundle",
        mistake="what is mapped and not read at once is not compared with its checksum",
        found="found = _sum_of(file) if stays",
        instead="found = crc if stays",
        tests=(f"{BUNDLE}::test_an_array_that_stays_on_disk_is_checked_to_its_last_byte",),
    ),
    Mutant(
        name="aside left",
        kind="bundle",
        mistake="what may not be published is left half written beside the checkpoints",
        found="    except NpmdaskError:\n        shutil.rmtree(aside, ignore_errors=True)\n        raise",
        instead="    except NpmdaskError:\n        raise",
        tests=(f"{BUNDLE}::test_what_may_not_be_published_leaves_nothing",),
    ),
    Mutant(
        name="old step removed first",
        kind="bundle",
        mistake="a step that is written again is removed before its newer version is there: a kill loses both",
        found="                path.rename(before)",
        instead="                shutil.rmtree(path)",
        tests=(f"{COMMIT}::test_a_step_is_there_while_its_newer_version_is_written",),
    ),
    # What rots.
    Mutant(
        name="first pass only",
        kind="checksum",
        mistake="the checksums of the first pass are kept and not compared in later ones, after a resume either",
        found="source.with_checksums(table)\n            source = source if reading",
        instead="source\n            source = source if reading",
        tests=(f"{LOOP}::test_data_that_change_between_passes_are_caught",),
    ),
    Mutant(
        name="last chunk unchecked",
        kind="checksum",
        mistake="the last chunk of each row of chunks of a dense array is not compared with its checksum",
        found="            self.note(slab, column, found, record)",
        instead="            if column + 1 < len(sums):\n                self.note(slab, column, found, record)\n"
        "            else:\n                record.checksums[slab, column] = found.crc\n"
        "                record.chunks += 1",
        tests=("tests/core/operators/test_operators.py::test_a_rotten_chunk_of_an_ingested_store_is_named",),
    ),
    Mutant(
        name="cut frame",
        kind="checksum",
        mistake="a Blosc frame that claims more bytes than there are is decoded: what lies behind it in memory is data",
        found="    if packed != size:",
        instead="    if packed < size:",
        tests=("tests/contract/test_parity.py::test_objects_are_held_to_the_same",),
    ),
    Mutant(
        name="index of a shard",
        kind="checksum",
        mistake="the checksum of the index of a shard is compared only where the index comes first",
        found="if self.checked and crc32c(table) != int.from_bytes(",
        instead="if self.checked and self.at_start and crc32c(table) != int.from_bytes(",
        tests=("tests/remote/test_shards.py::test_a_damaged_shard_is_read_as_zarr_reads_it_or_named",),
    ),
    Mutant(
        name="short file",
        kind="checksum",
        mistake="a file that ends early ends the reading: the buffer still holds the chunk before",
        found="        if count == 0:\n            raise",
        instead="        if count == 0:\n            return\n            raise",
        tests=("tests/core/storage/test_shards.py::test_a_shard_that_changes_is_found",),
    ),
    Mutant(
        name="values of sparse rows",
        kind="checksum",
        mistake="of sparse rows the numbers of columns are compared with their checksum, and the values are not",
        found="if self.checksums is not None and int(self.checksums[name][slab]) != crc:",
        instead='if self.checksums is not None and name == "indices" and int(self.checksums[name][slab]) != crc:',
        tests=(
            "tests/core/operators/test_operators.py::test_a_rotten_chunk_of_an_ingested_sparse_store_is_named[data]",
        ),
    ),
    # Where a run that was ended goes on.
    Mutant(
        name="oldest step",
        kind="resume",
        mistake="a run goes on from the oldest step that is kept, and makes those after it again",
        found="for path in reversed(self._steps()):\n            with suppress(BadInputError):\n                arrays",
        instead="for path in self._steps():\n            with suppress(BadInputError):\n                arrays",
        tests=(f"{LOOP}::test_an_old_step_whose_removal_was_interrupted_goes_when_the_store_is_opened",),
    ),
    Mutant(
        name="history lost",
        kind="resume",
        mistake="only the last line of the history is taken over: passes and bytes before it are not counted",
        found='return facts.algorithm.load(arrays, meta["state"]), meta["history"]',
        instead='return facts.algorithm.load(arrays, meta["state"]), meta["history"][-1:]',
        tests=(f"{LOOP}::test_resumed_in_the_same_bits_with_other_threads[7-samples]",),
    ),
    Mutant(
        name="steps before forgotten",
        kind="resume",
        mistake="the stopping rule does not see the steps before: a run that was done makes more of them",
        found="    views = views_of(history)\n    outcome = facts.rule(views)",
        instead="    views: list[StepView] = []\n    outcome = facts.rule(views)",
        tests=(f"{LOOP}::test_resumed_in_the_same_bits_with_other_threads[7-samples]",),
    ),
    Mutant(
        name="parts by their label",
        kind="resume",
        mistake="finished parts of a pass are taken for those of any pass with the same label",
        found='if meta["key"] == key:',
        instead='if meta["key"]["label"] == key["label"]:',
        tests=(PARTS,),
    ),
    Mutant(
        name="parts of another block",
        kind="resume",
        mistake="the block is no part of what a pass is known by: parts of another product are added up",
        found='"label": label, "block": crc32c(block), "dtype"',
        instead='"label": label, "dtype"',
        tests=("tests/core/execution/test_reduction.py::test_parts_are_known_by_all_that_they_are_made_of",),
    ),
    Mutant(
        name="checksums of parts lost",
        kind="resume",
        mistake="parts that are taken over come without the checksums of what was read for them",
        found='checksums={(int(a), int(b)): int(crc) for a, b, crc in arrays[f"{i}-checksums"].reshape(-1, 3)},',
        instead="checksums={},",
        tests=(PARTS,),
    ),
    # What rows and columns are called.
    Mutant(
        name="grid by its size",
        kind="names",
        mistake="another grid with as many cells is taken for that of the run: a flipped latitude is scored",
        found="    if mine.shape == theirs.shape and _close(mine, theirs, off).all():",
        instead="    if mine.shape == theirs.shape:",
        tests=("tests/contract/test_names.py::test_orders", "tests/contract/test_names.py::test_refusals"),
    ),
    Mutant(
        name="genes in any order",
        kind="names",
        mistake="names are compared as a set: columns in another order are taken as they lie",
        found="    same = np.array_equal(order, np.arange(prod(sizes)))",
        instead="    same = bool(np.array_equal(np.sort(order), np.arange(prod(sizes))))",
        tests=("tests/contract/test_names.py::test_orders",),
    ),
    Mutant(
        name="rows lose their names",
        kind="names",
        mistake="where columns are left out, the names of rows are left out too",
        found="Labels(known_labels.rows, (called,), grid, points)",
        instead="Labels((), (called,), grid, points)",
        tests=("tests/missing/test_missing.py::test_names_of_columns_are_in_the_refusal_and_in_the_answer",),
    ),
    Mutant(
        name="names of the first columns",
        kind="names",
        mistake="columns that are kept are called as the first ones of the data are",
        found="Axis(axes[0].name, len(kept), names[kept])",
        instead="Axis(axes[0].name, len(kept), names[: len(kept)])",
        tests=("tests/missing/test_missing.py::test_names_of_columns_are_in_the_refusal_and_in_the_answer",),
    ),
    Mutant(
        name="rows not exported",
        kind="names",
        mistake="an export names columns, and leaves out what rows are called",
        found='sides = {"rows": self.rows, "columns": self.columns, "grid": self.grid, "points": self.points}',
        instead='sides = {"columns": self.columns, "grid": self.grid, "points": self.points}',
        tests=("tests/manage/test_labelled_files.py::test_a_grid",),
    ),
    Mutant(
        name="fields by their number of rows",
        kind="names",
        mistake="two fields of as many rows are paired, whatever times the rows are of",
        found="    if places is not None:\n        row = int(np.argmax(",
        instead="    if places is not None and not len(places):\n        row = int(np.argmax(",
        tests=("tests/contract/test_names.py::test_rows_of_two_fields_must_have_one_order",),
    ),
    Mutant(
        name="weights in any order",
        kind="names",
        mistake="names that one side does not have are not noticed",
        found="        elif (found < 0).any():",
        instead="        elif (found < 0).all():",
        tests=("tests/contract/test_names.py::test_refusals",),
    ),
    # How wrong an answer can be.
    Mutant(
        name="half of the residual",
        kind="bounds",
        mistake="a value is said to be within half of its residual of an eigenvalue",
        found="nearest = np.sqrt(np.maximum(np.diagonal(evidence.gram)[:k], 0.0)) + e",
        instead="nearest = np.sqrt(np.maximum(np.diagonal(evidence.gram)[:k], 0.0)) / 2 + e",
        tests=(f"{LEVELS}::test_sentences",),
    ),
    Mutant(
        name="no rounding",
        kind="bounds",
        mistake="what rounding can do to an eigenvalue is not added to its bound",
        found="e = evidence.rounding + _noise(evidence)",
        instead="e = _noise(evidence)",
        tests=(f"{LEVELS}::test_noise_and_rounding_widen_everything",),
    ),
    Mutant(
        name="gap of the data",
        kind="bounds",
        mistake="the angle that rounding turns a vector by is taken over the gap as it was seen, not over what is left",
        found="    return e / (gap - e) if gap > e else math.inf",
        instead="    return e / gap if gap > 0 else math.inf",
        tests=(f"{LEVELS}::test_noise_and_rounding_widen_everything",),
    ),
    Mutant(
        name="ties ignored",
        kind="bounds",
        mistake="as many equal values as there are columns are taken for all of their kind",
        found="    tau[_count_distinct(a, high + 2 * evidence.rounding, math.ceil(ALIKE * columns)) :] = np.inf\n",
        instead="",
        tests=(f"{LEVELS}::test_as_many_pairs_in_a_row_as_columns_may_be_more",),
    ),
    Mutant(
        name="share of less",
        kind="bounds",
        mistake="the total that a share is of counts one row fewer",
        found="gram.view.trace(columns.mean, columns.std, source.shape[0]) * gram.weight",
        instead="gram.view.trace(columns.mean, columns.std, source.shape[0] - 1) * gram.weight",
        tests=("tests/share/test_rank_search.py::test_as_many_as_scikit_learn_finds[0.3]",),
    ),
    Mutant(
        name="float32 of float64",
        kind="bounds",
        mistake="products in float32 are certified as if they were rounded as in float64",
        found="SINGLE_FLOOR * SINGLE_EPS * math.sqrt(d) * size",
        instead="SINGLE_FLOOR * DOUBLE_EPS * math.sqrt(d) * size",
        tests=(f"{MIXED}::test_what_formed_the_space_in_float32_counts_after_a_last_step_in_float64",),
    ),
    Mutant(
        name="float32 forgotten",
        kind="bounds",
        mistake="a space that was formed in float32 is certified with the rounding of its last step, in float64",
        found='single = "float32" in precisions',
        instead='single = precisions[-1] == "float32"',
        tests=(f"{MIXED}::test_what_formed_the_space_in_float32_counts_after_a_last_step_in_float64",),
    ),
    Mutant(
        name="none was missed",
        kind="bounds",
        mistake="after a warm start nothing larger is assumed, although its random columns have not ruled it out",
        found="np.maximum(_from_residuals(evidence), evidence.missed)",
        instead="_from_residuals(evidence)",
        tests=("tests/theory/certificates/test_warm_starts.py::test_a_start_that_knows_a_part_of_a_cluster",),
    ),
    # What a run takes.
    Mutant(
        name="limit of the processes alone",
        kind="memory",
        mistake="the limit is compared with what the processes hold, not with what the run will need",
        found="if limit is None or plan.predicted_peak <= limit:",
        instead="if limit is None or plan.base <= limit:",
        tests=(f"{PLAN}::test_the_chunks_that_are_said_to_fit_do",),
    ),
    Mutant(
        name="one task",
        kind="memory",
        mistake="a task is counted once, whatever the number of threads",
        found="return self.base + self.state + self.held + self.task * self.threads * max(1, self.workers)",
        instead="return self.base + self.state + self.held + self.task * max(1, self.workers)",
        tests=(f"{PLAN}::test_every_task_of_every_process_is_counted",),
    ),
    Mutant(
        name="children not measured",
        kind="memory",
        mistake="the peak of a run is that of its first process, without its workers",
        found="                if self._keep(child, max(rss, mark), whole=mark > 0):\n                    total += rss",
        instead="                self._keep(child, max(rss, mark), whole=mark > 0)",
        tests=(
            "tests/core/execution/test_memory.py::test_processes_below_count_where_memory_is_planned_and_where_it_is_measured",
        ),
    ),
    Mutant(
        name="children not counted before",
        kind="memory",
        mistake="what the processes hold when memory is planned leaves out those below the first",
        found="            total += int(child.memory_info().rss)",
        instead="            child.memory_info()",
        tests=(
            "tests/core/execution/test_memory.py::test_processes_below_count_where_memory_is_planned_and_where_it_is_measured",
        ),
    ),
    Mutant(
        name="blocks on disk",
        kind="memory",
        mistake="what is in memory of blocks that lie on disk is not in what is predicted",
        found="return self.base + self.state + self.held +",
        instead="return self.base + self.state +",
        tests=("tests/core/runs/test_disk_blocks.py::test_blocks_in_memory_fill_what_the_limit_leaves",),
    ),
    Mutant(
        name="blocks beyond the limit",
        kind="memory",
        mistake="all of a block on disk is read into memory at once, whatever the limit leaves",
        found="held=min(whole, room)",
        instead="held=whole",
        tests=("tests/core/runs/test_disk_blocks.py::test_blocks_in_memory_fill_what_the_limit_leaves",),
    ),
    Mutant(
        name="locked columns",
        kind="memory",
        mistake="columns that an earlier run found are multiplied and not planned for",
        found="plan = _plan_for(operator, p + locked, state_blocks, limit, base, count, workers)",
        instead="plan = _plan_for(operator, p, state_blocks, limit, base, count, workers)",
        tests=(f"{PLAN}::test_the_rank_that_is_said_to_fit_is_the_largest_that_fits[7]",),
    ),
    Mutant(
        name="in flight beyond the limit",
        kind="memory",
        mistake="an object store is asked for as much as the link takes, whatever memory is left",
        found="return min(wanted, _room(plan)) // max(1, plan.workers)",
        instead="return wanted // max(1, plan.workers)",
        tests=("tests/remote/test_prefetch.py::test_the_memory_plan_counts_what_is_in_flight",),
    ),
    # What makes it the same run.
    Mutant(
        name="other weights",
        kind="restore",
        mistake="weights that a store keeps are not compared with those that the run began with",
        found="if aspect is None or not all(same):",
        instead="if aspect is None:",
        tests=("tests/weights/test_weights.py::test_weights_in_a_store_that_were_changed_are_refused",),
    ),
    Mutant(
        name="options by default",
        kind="restore",
        mistake="options of the algorithm are not restored: the run is refused, or goes on another way",
        found='options=algorithm.get("options"),\n        max_steps=spec["stop"]["max_steps"],\n        tol',
        instead='options=None,\n        max_steps=spec["stop"]["max_steps"],\n        tol',
        tests=("tests/manage/test_disk_blocks.py::test_blocks_of_finished_runs_are_cleared_away",),
    ),
    Mutant(
        name="fill lost",
        kind="restore",
        mistake="the public numbers that gaps of a private run count as are not restored",
        found="fill=known, values=tuple(values)",
        instead="fill=None, values=tuple(values)",
        tests=(f"{RULES}::test_a_run_keeps_its_marks",),
    ),
    Mutant(
        name="table that is absent",
        kind="restore",
        mistake="a table of run.json that the call does not have is not compared: weights of a run are forgotten",
        found="for name in sorted(set(found[table]) - set(wanted.get(table, {}))):",
        instead="for name in set(found[table]) - set(wanted.get(table, found[table])):",
        tests=(
            "tests/weights/test_weights.py::test_a_run_that_was_killed_goes_on_with_its_own_weights_to_the_same_bits",
        ),
    ),
    Mutant(
        name="locked lost",
        kind="restore",
        mistake="a run for further components goes on without those that were found before",
        found='part = held.read_part("locked") if spec["run"]["deflates"] else None',
        instead="part = None",
        tests=("tests/core/algorithms/test_power.py::test_deflation_continues_where_a_run_ended",),
    ),
    Mutant(
        name="another seed",
        kind="restore",
        mistake="a run goes on with the seed that is the default",
        found='seed=spec["run"]["seed"],\n        mechanism=',
        instead="seed=0,\n        mechanism=",
        tests=("tests/cli/test_options.py::test_a_run_of_changed_keys_resumes_as_itself",),
    ),
    Mutant(
        name="start lost",
        kind="restore",
        mistake="a run that began where an earlier one came to forgets that once the earlier one is gone",
        found="begun = read_start(held) if start else None",
        instead="begun = None",
        tests=("tests/core/runs/test_warm_start.py::test_a_run_outlives_what_it_started_from",),
    ),
    Mutant(
        name="committed work bound again",
        kind="restore",
        mistake="a store with committed steps is given to a run with other parameters, and its steps with it",
        found="(other := _differences(wanted, spec)) and store.unbegun:",
        instead="(other := _differences(wanted, spec)):",
        tests=("tests/core/runs/test_unbegun.py::test_committed_work_is_kept_and_the_remedy_comes_first",),
    ),
)
