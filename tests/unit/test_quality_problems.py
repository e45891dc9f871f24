"""The problems of the benchmarks of quality are what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cartpole_problem
import control_tasks
import digits_problem
import gymnasium
import lockstep
import numpy as np
import pytest
import schedule_tasks
import schedules
import schedules_page
import settings
import winner
import winner_tasks
from comparing import Cell, run_cell
from scipy.stats import wilcoxon
from several_metrics import FAR, front, missed

import phyla
from effort import rarely, times


def test_advantages_are_discounted_sums_that_stop_at_failures() -> None:
    rng = np.random.default_rng(0)
    rewards, values, ended = rng.normal(size=(6, 2)), rng.normal(size=(7, 2)), np.zeros((6, 2))
    ended[2, 1] = 1.0
    found = cartpole_problem.advantages(rewards, values, ended, 0.9, 1.0)
    whole = sum(0.9**at * rewards[at, 0] for at in range(6)) + 0.9**6 * values[6, 0]
    assert found[0, 0] == pytest.approx(whole - values[0, 0])
    assert found[0, 1] == pytest.approx(rewards[0, 1] + 0.9 * rewards[1, 1] + 0.81 * rewards[2, 1] - values[0, 1])
    one_step = cartpole_problem.advantages(rewards, values, ended, 0.9, 0.0)
    assert one_step[4] == pytest.approx(rewards[4] + 0.9 * values[5] - values[4])


@pytest.mark.thorough
def test_the_pole_is_learned_with_good_settings_and_not_without_learning() -> None:
    def reached(lr: float) -> float:
        grid = {"lr": [lr], "horizon": [50.0], "trace": [0.9], "entropy": [1e-3]}
        cell = Cell(problem="cartpole", label="", strategy=phyla.GridSearch(grid, 150), seed=0)
        return float(run_cell(cell)["final"]["report"])

    assert reached(0.02) > 90
    assert reached(1e-5) < 40


def test_a_step_on_the_digits_goes_down_the_gradient() -> None:
    rng = np.random.default_rng(0)
    weights = digits_problem.fresh(rng)
    x, y = rng.normal(size=(5, 64)), rng.integers(0, 10, 5)
    before = {name: value.copy() for name, value in weights.items()}
    params: Any = {"lr": 1.0, "momentum": 0.0, "decay": 0.1}
    digits_problem.step(weights, x, y, params)
    for name in ("w1", "b1", "w2", "b2"):
        at = (0,) * before[name].ndim
        moved = {**before, name: before[name].copy()}
        moved[name][at] += 1e-6
        slope = (digits_problem.nll(moved, (x, y)) - digits_problem.nll(before, (x, y))) / 1e-6
        expected = -(slope + 0.1 * before[name][at])
        assert weights[name][at] - before[name][at] == pytest.approx(expected, abs=1e-4)


def test_training_labels_are_wrong_as_often_as_said_and_parts_share_no_image() -> None:
    x, y = digits_problem.images()
    parts = digits_problem.split(3)
    rows = {tuple(row): label for row, label in zip(x, y, strict=True)}
    wrong = [rows[tuple(row)] != label for row, label in zip(*parts["train"], strict=True)]
    assert np.mean(wrong) == pytest.approx(digits_problem.WRONG, abs=0.08)
    assert all(rows[tuple(row)] == label for row, label in zip(*parts["test"], strict=True))
    assert sum(len(part[1]) for part in parts.values()) == len(y)
    seen = [{tuple(row) for row in part[0]} for part in parts.values()]
    assert not seen[0] & seen[1]
    assert not seen[0] & seen[2]


def test_what_is_missed_of_a_front_is_a_share_of_its_area() -> None:
    true = [[x**2, (1 - x) ** 2, 1.0] for x in np.linspace(0.0, FAR**0.5, 5000)]
    assert missed(true) == pytest.approx(0.0, abs=0.1)
    assert missed([[0.9, 0.01, 0.0], [0.3, 1.2, 1.0]]) == pytest.approx(100.0)
    one = (FAR - 0.25) * (1 - 0.25)
    area = 4 / 3 * FAR**1.5 - FAR**2 / 2
    # What is dominated, or beyond the limit, adds nothing.
    assert missed([[0.25, 0.25, 1.0], [0.3, 0.3, 1.0], [0.7, 0.1, 0.0]]) == pytest.approx(100 * (1 - one / area))
    assert front([[0.3, 0.2, 1.0], [0.1, 0.5, 1.0], [0.2, 0.6, 1.0], [0.05, 0.1, 0.0]]) == [(0.1, 0.5), (0.3, 0.2)]


def test_the_steps_of_stopped_trials_count_up_to_the_report_that_stopped_them() -> None:
    never = phyla.strategies.Divergence(above=0.01)
    # Draws anew where a trial was stopped.
    search = phyla.PBT(
        population_size=2, steps_per_trial=40, total_steps=40, exploit=None, explore=None, quorum=0.0
    )
    found = run_cell(Cell(problem="digits_reports", label="", strategy=search, seed=0, stopping=[never]))
    # Three times each, then it is left to run.
    assert [one[1:] for one in found["details"]["stopped"]] == [[10, 30]] * 6
    assert found["spent"] == 2 * 40 + 6 * 10
    assert [one[0] for one in found["details"]["ended"]][-1] == found["spent"]
    free = run_cell(Cell(problem="digits_reports", label="", strategy=search, seed=0))
    assert free["spent"] == 2 * 40
    assert free["details"]["stopped"] == []


@pytest.mark.parametrize(("task", "level"), [rarely("bandit", 0.3), ("toy", 3.0), rarely("logistic", 0.0)])
def test_the_estimated_winner_is_no_worse_than_the_best_score_ever_or_of_the_last(task: str, level: float) -> None:
    studies = [
        winner.record(winner_tasks.TASKS[task], level, seed)
        for seed in range(2000, times(2004, 2012) if level else 2003)
    ]
    regret = winner.summary(studies)["median"]
    assert regret["estimate"] <= min(regret["best ever"], regret["best of last"], regret["median of last"])
    if level == 0:
        assert all(winner.RULES["estimate"](study) == study.luckiest for study in studies)


@pytest.mark.thorough  # unit/strategies/test_final.py: how finals are judged
def test_the_expected_score_of_a_final_covers_the_true_value() -> None:
    study = winner.record(winner_tasks.TASKS["toy"], 3.0, 2000)
    finals = [winner.hold_final(replace(study, seed=seed), phyla.Final()) for seed in range(50)]
    covered = [score.low <= study.true[place] <= score.high for place, score in finals]
    assert 45 <= sum(covered) < 50


def test_recorded_populations_are_those_of_a_study(tmp_path: Path) -> None:
    toy, rng = winner_tasks.TOY, np.random.default_rng(0)
    recorded = winner.record(toy, 0.0, 1, trials=4)

    def train(trial: phyla.Trial) -> None:
        state = {"w": np.load(trial.source.path / "w.npy")} if trial.source else toy.fresh(rng, 1)
        for _ in trial.steps():
            state = toy.step(state, {name: np.array([value]) for name, value in trial.params.items()}, rng)
        np.save(trial.checkpoint_dir / "w.npy", state["w"])
        trial.report(q=toy.true(state)[0])

    strategy = phyla.PBT(population_size=16, steps_per_trial=5, total_steps=20, quorum=1.0)
    study = phyla.Study(
        "toy", toy.space, phyla.Maximize("q"), strategy, train, seed=1, home=tmp_path, storage="memory://"
    )
    trials = sorted(study.run(workers=0).trials(), key=lambda trial: (trial.generation, trial.member))
    places = {trial.id: place for place, trial in enumerate(trials)}
    assert [None if trial.parent is None else places[trial.parent] for trial in trials] == recorded.parents
    assert [trial.fitness for trial in trials] == pytest.approx(recorded.scores)


def values(task: str, label: str, seeds: int) -> list[float]:
    job = schedules.Job(task=task, label=label, seeds=tuple(range(500, 500 + seeds)))
    return [row["value"] for row in job.run()]


@pytest.mark.parametrize(
    ("label", "low", "high"),
    [
        ("random, constant", 0.496, 0.502),
        ("random peak, cosine", 0.297, 0.301),
        ("random peak, linear", 0.287, 0.291),
        ("PBT, long interval", 0.362, 0.410),
    ],
)
def test_the_noisy_quadratic_has_the_losses_of_an_independent_implementation(
    label: str, low: float, high: float
) -> None:
    # Its quartiles; of PBT, whose rules there were others, a little more.
    assert low <= np.median(values("quadratic", label, 5)) <= high


@pytest.mark.parametrize("label", settings.SETTINGS)
def test_settings_are_compared_at_equal_steps(label: str) -> None:
    task = schedule_tasks.TASKS["even noise"]
    (row,) = settings.Job(task=task.name, label=label, interval=1, seeds=(500,)).run()
    assert row["spent"] == task.members * task.steps


@pytest.mark.thorough  # docs/results.md is built from more seeds
def test_a_tuned_cosine_beats_pbt_where_the_learning_rate_is_all_there_is() -> None:
    assert max(values("quadratic", "random peak, cosine", 4)) < min(values("quadratic", "PBT", 4))


def test_pbt_beats_a_tuned_cosine_where_other_hyperparameters_matter() -> None:
    population, search = (values("ravine", label, 16) for label in ("PBT", "random peak, cosine"))
    assert np.median(population) < np.median(search)
    assert wilcoxon(population, search).pvalue < 1e-3


def test_the_loss_under_schedule_free_sgd_is_that_of_drawn_gradients() -> None:
    task, curvature = schedule_tasks.TASKS["even noise"], 1 / np.arange(1.0, 201)
    rows: dict[str, Any] = {"world": {}, "total": 1000, "count": 200, "decay": lockstep.constant}
    single = lockstep.Rows(**rows, seeds=np.array([0]), ages=np.zeros(1), params={"lr": np.array([0.5])})
    assert task.averaged is not None
    exact = task.value(task.averaged({"w": np.ones((1, 200))}, single), single)
    noise = 0.1 * np.random.default_rng(0).normal(size=(200, 300, 200))
    many = lockstep.Rows(
        **rows,
        seeds=np.zeros(300, int),
        ages=np.zeros(300),
        params={"lr": np.full(300, 0.5)},
        drawn={"noise": noise},
    )
    drawn = schedule_tasks.schedule_free(lambda w, rows, step: curvature * w + rows.drawn["noise"][step])
    losses = 0.5 * (drawn({"w": np.ones((300, 200))}, many)["w"] ** 2 * curvature).sum(axis=1)
    assert exact[0] == pytest.approx(losses.mean(), rel=0.02)


@pytest.mark.parametrize("label", ["PBT", "ASHA, cosine", "initiator PBT"])
def test_studies_in_step_are_those_of_a_real_study(label: str, tmp_path: Path) -> None:
    task = replace(schedule_tasks.TASKS["deceptive"], members=8, intervals=(200, 200, 200))
    way = schedules.CONTENDERS[label].way(task)

    def train(trial: phyla.Trial) -> None:
        rng = np.random.default_rng(0)
        state = dict(np.load(trial.source.path / "w.npz")) if trial.source else task.fresh({}, rng, 1)
        rows = lockstep.Rows(
            world={},
            seeds=np.array([0]),
            total=task.steps,
            params={name: np.array([value]) for name, value in trial.params.items()},
            ages=np.array([float(trial.start_step)]),
            count=trial.end_step - trial.start_step,
            decay=way.decay,
        )
        state = task.train(state, rows)
        np.savez(trial.checkpoint_dir / "w.npz", **state)
        trial.report(score=float(task.score(state, rows)[0]), step=trial.end_step)

    goal, store = phyla.Maximize("score"), "memory://"
    study = phyla.Study("toy", task.space, goal, way.strategy, train, seed=500, home=tmp_path, storage=store)
    best = study.run(workers=0).best
    assert best is not None
    (found,) = lockstep.run(task, way, [500])
    assert [best.fitness, best.checkpoint.step] == [pytest.approx(found["value"]), found["age"]]


@pytest.mark.parametrize("name", ["letters", "digits", "few examples"])
def test_gradients_of_the_tasks_are_those_of_their_losses(name: str) -> None:
    # One step at a small rate changes the loss by the square of the gradient, on average over the data.
    task = schedule_tasks.TASKS[name]
    world = {key: value[None] for key, value in task.world(0).items()}
    state = task.fresh(task.world(0), np.random.default_rng(0), 1)
    drawn = task.draw(np.random.default_rng(1), 2000, 1)
    params = {"lr": np.array([1e-3]), "momentum": np.zeros(1), "decay": np.zeros(1)}
    rows = lockstep.Rows(
        world=world,
        seeds=np.array([0]),
        total=task.steps,
        params=params,
        ages=np.zeros(1),
        count=2000,
        drawn=drawn,
        decay=lockstep.constant,
    )
    after = task.train({key: value.astype(float) for key, value in state.items()}, rows)
    assert task.value(after, rows)[0] < task.value(state, rows)[0] - 0.01


def test_poles_move_as_in_gymnasium() -> None:
    theirs: Any = gymnasium.make("CartPole-v1").unwrapped
    rng, at = np.random.default_rng(0), np.array([[2.3, 1.5, 0.1, -0.4]])
    theirs.reset(seed=0)
    theirs.state = at[0]
    for action in rng.integers(2, size=30):
        at, reward, failed = control_tasks.balance(at, np.array([action]))
        seen, _, terminated, _, _ = theirs.step(action)
        assert at[0] == pytest.approx(seen, abs=1e-5)
        assert bool(failed[0]) == terminated
        assert reward[0] == 1.0
        if terminated:
            break
    assert terminated


def test_pendulums_move_as_in_gymnasium() -> None:
    theirs: Any = gymnasium.make("Pendulum-v1").unwrapped
    at = np.array([[3.0, 0.5]])
    theirs.reset(seed=0)
    theirs.state = at[0]
    for action in np.random.default_rng(0).integers(3, size=30):
        at, height, failed = control_tasks.swing(at, np.array([action]))
        seen = [theirs.step(np.array([2.0 * action - 2.0]))[0] for _ in range(control_tasks.REPEAT)]
        assert control_tasks.seen(at)[0] * [1, 1, 4] == pytest.approx(seen[-1], abs=1e-5)
        assert height[0] == pytest.approx(np.mean([(1 + cosine) / 2 for cosine, _, _ in seen]), abs=1e-5)
        assert not failed.any()


def test_policy_gradients_are_differences_of_the_loss() -> None:
    control, rng = control_tasks.PENDULUM, np.random.default_rng(0)
    w = control.fresh({}, rng, 2)["w"].astype(float) + 0.3 * rng.normal(size=(2, 100))
    x, action = rng.normal(size=(2, 7, 3)), rng.integers(3, size=(2, 7))
    gain, target, entropy = rng.normal(size=(2, 7)), rng.normal(size=(2, 7)), np.array([0.1, 0.4])

    def loss(w: Any) -> Any:
        _, log, value = control.forward(w, x)
        chosen = np.take_along_axis(log, action[..., None], axis=-1)[..., 0]
        uncertain = -(np.exp(log) * log).sum(axis=-1)
        return (-gain * chosen - entropy[:, None] * uncertain + (value - target) ** 2 / 4).mean(axis=1)

    slope = control.slope(w, x, action, gain, target, entropy)
    moved = 1e-6 * np.eye(100)
    differences = np.stack([(loss(w + shift) - loss(w - shift)) / 2e-6 for shift in moved], axis=1)
    assert slope == pytest.approx(differences, abs=1e-7)


def test_advantages_of_members_are_discounted_sums_that_stop_at_failures() -> None:
    rng = np.random.default_rng(0)
    reward, value, failed = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 7, 3)), np.zeros((2, 6, 3), bool)
    failed[0, 2, 1] = True
    discount, trace = np.array([0.9, 0.5]), np.array([0.8, 0.2])
    found = control_tasks.advantages(reward, value, failed, discount, trace)
    for member in range(2):
        settings = float(discount[member]), float(trace[member])
        single = cartpole_problem.advantages(
            reward[member], value[member], failed[member].astype(float), *settings
        )
        assert found[member] == pytest.approx(single)


def test_evolution_strategies_follow_the_gradient_of_the_meta_loss() -> None:
    rng, count = np.random.default_rng(0), 3000
    task = control_tasks.TASKS["learned optimizer"]
    w = task.fresh({}, rng, 1)["w"]
    problem = control_tasks.quadratics(rng, (1, 1))
    noise = rng.normal(size=(1, count, w.shape[1])).astype(np.float32)
    many = {name: np.repeat(values, count, axis=1) for name, values in problem.items()}
    estimate = control_tasks.evolved(w, many, noise, np.array([0.01]), np.array([20.0]))[0]

    def loss(w: Any) -> float:
        return float(control_tasks.unrolled(w, problem)[..., :20].mean())

    shifts = 0.01 * np.eye(w.shape[1], dtype=np.float32)
    exact = np.array([(loss(w + shift) - loss(w - shift)) / 0.02 for shift in shifts])
    assert estimate @ exact / (np.linalg.norm(estimate) * np.linalg.norm(exact)) > 0.98
    assert np.linalg.norm(estimate) == pytest.approx(np.linalg.norm(exact), rel=0.1)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("cartpole", {"lr": 0.03, "entropy": 0.001, "distance": 0.1, "trace": 0.9}, {"lr": 0.001}),
        rarely("pendulum", {"lr": 0.03, "entropy": 0.01, "distance": 0.2, "trace": 0.9}, {"lr": 0.001}),
        ("learned optimizer", {"lr": 0.03, "sigma": 0.1, "unroll": 30.0}, {"lr": 0.001}),
    ],
)
def test_good_constant_settings_learn_and_small_rates_do_not(
    name: str, good: dict[str, float], bad: dict[str, float]
) -> None:
    task = control_tasks.TASKS[name]

    def reached(settings: dict[str, float]) -> list[float]:
        grid = {parameter: [value] for parameter, value in settings.items()}
        way = lockstep.Way(strategy=phyla.GridSearch(grid, task.steps), decay=lockstep.constant)
        return [
            row["value"] * (1 if task.maximize else -1)
            for row in lockstep.run(task, way, range(500, times(501, 503)))
        ]

    assert min(reached(good)) > max(reached(good | bad))


@pytest.mark.thorough
def test_rules_that_random_search_finds_are_as_good_as_recorded() -> None:
    # The quartiles of the row in docs/results.md, on other seeds.
    assert -1.72 <= np.median(values("learned optimizer", "random, constant", 5)) <= -1.58


def test_groups_of_tasks_are_summarised_each_in_a_section(tmp_path: Path) -> None:
    labels, rng = (schedules.PBT, schedules.COSINE, schedules.CONSTANT), np.random.default_rng(0)
    tasks, common = list(control_tasks.TASKS), {"age": 1, "spent": 1, "process_s": 60.0}
    found = [
        {"task": task, "label": label, "seed": seed, "value": float(rng.normal(loc=len(label))), **common}
        for task in tasks
        for label in labels
        for seed in range(12)
    ]
    document = schedules.summary(tasks, found, range(12))
    (tmp_path / "control.json").write_text(json.dumps(document))
    ((title, text),) = schedules_page.sections(tmp_path).items()
    assert title == schedules_page.CONTROL_TITLE
    assert "3 more tasks, 12 seeds each" in text
    assert "in 108\nminutes" in text
    medians = [f"{table['rows'][schedules.PBT]['median']:.4f}" for table in document["tasks"]]
    (row,) = (line for line in text.splitlines() if line.startswith("| PBT |") and line.count("|") == 5)
    assert [cell.split()[0] for cell in row.split("|")[2:5]] == medians
