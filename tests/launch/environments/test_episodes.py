import numpy as np

from launch.environments.episodes import EpisodeRecorder


def test_returns_and_lengths_by_hand() -> None:
    recorder = EpisodeRecorder(2)
    recorder.add(np.array([1.0, 10.0], np.float32))
    recorder.add(np.array([2.0, 20.0], np.float32))
    recorder.finish(np.array([True, False]))
    recorder.add(np.array([0.0, 30.0], np.float32))  # environment 0 shows its first observation
    recorder.add(np.array([4.0, 40.0], np.float32))
    recorder.finish(np.array([True, True]))
    assert recorder.take() == [(3.0, 2, 0), (4.0, 1, 0), (100.0, 4, 1)]
    assert recorder.take() == []


def test_lengths_that_the_library_counts() -> None:
    recorder = EpisodeRecorder(1)
    recorder.add(np.ones(1, np.float32))
    recorder.finish(np.array([True]), np.array([7], np.int32))
    assert recorder.take() == [(1.0, 7, 0)]


def test_reset_forgets() -> None:
    recorder = EpisodeRecorder(1)
    recorder.add(np.ones(1, np.float32))
    recorder.reset()
    recorder.add(np.full(1, 5.0, np.float32))
    recorder.finish(np.array([True]))
    assert recorder.take() == [(5.0, 1, 0)]


def test_many_small_rewards_are_not_lost_beside_a_large_one() -> None:
    recorder = EpisodeRecorder(1)
    recorder.add(np.full(1, 2.0**24, np.float32))
    for _ in range(100):
        recorder.add(np.ones(1, np.float32))
    recorder.finish(np.array([True]))
    assert recorder.take()[0].return_ == 2**24 + 100  # float32 would have stayed at 2**24
