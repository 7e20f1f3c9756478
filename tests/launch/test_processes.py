import socket

import pytest

from launch.processes import Channel, connect, listen, role_environment, stop_seconds
from launch.supervisor import Report


def test_a_cpu_role_sees_no_gpu_and_keeps_to_its_threads():
    environment = role_environment("actor", threads=1, environ={"XLA_FLAGS": "--xla_dump_to=here"})
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["JAX_PLATFORMS"] == "cpu"
    assert environment["XLA_FLAGS"] == (
        "--xla_dump_to=here --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    assert environment["OMP_NUM_THREADS"] == environment["TF_NUM_INTRAOP_THREADS"] == "1"


def test_a_role_with_devices_sees_those():
    environment = role_environment("learner", [2, 3], threads=4, environ={})
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["JAX_PLATFORMS"] == "cuda,cpu"
    assert environment["XLA_FLAGS"] == "--xla_cpu_multi_thread_eigen=true intra_op_parallelism_threads=4"


def test_exceptions_from_proxies_are_added_to():
    environ = {"no_proxy": "example.org,localhost", "http_proxy": "http://proxy"}
    environment = role_environment("actor", environ=environ)
    assert environment["no_proxy"] == "example.org,localhost,127.0.0.1"
    assert environment["NO_PROXY"] == "localhost,127.0.0.1"


def test_few_arenas_hold_what_is_freed_unless_the_user_says_otherwise():
    assert role_environment("learner", environ={})["MALLOC_ARENA_MAX"] == "2"
    assert role_environment("learner", environ={"MALLOC_ARENA_MAX": "8"})["MALLOC_ARENA_MAX"] == "8"


def test_no_threads_is_refused():
    with pytest.raises(ValueError, match="threads=0 of learner"):
        role_environment("learner", threads=0)


def test_messages_stay_apart_and_a_lost_peer_is_told():
    listener, name = listen()
    with listener:
        client = connect(name)
        server_socket, _ = listener.accept()
    client.send(Report("actor-0", "starting"))
    client.send(7)
    server = Channel(server_socket)
    assert server.receive() == Report("actor-0", "starting")
    assert server.receive() == 7
    client.close()
    assert server.receive() is None
    assert not server.send(8)
    server.close()
    with pytest.raises(ConnectionRefusedError):
        connect(name)


def test_what_a_peer_sent_before_it_left_arrives_even_if_it_left_ours_unread():
    ours, theirs = (Channel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    ours.send(15)
    theirs.send("the role's end")
    theirs.close()
    assert ours.receive() == "the role's end"
    assert ours.receive() is None
    ours.close()


def test_a_message_too_large_is_refused_before_it_is_sent():
    listener, name = listen()
    with listener:
        client = connect(name)
        with pytest.raises(ValueError, match="over the limit of 200,000"):
            client.send(b"x" * 200_000)
        assert client.send(b"x" * 199_000)  # control: one that fits the kernel's buffer goes through
        server_socket, _ = listener.accept()
        assert isinstance(server_socket, socket.socket)
        server_socket.close()
    client.close()


def test_a_container_that_has_longer_gives_its_roles_longer():
    assert stop_seconds({}, 10.0, 20.0) == 20.0
    assert stop_seconds({"ANTIPHON_STOP_SECONDS": "30"}, 10.0, 20.0) == 20.0
    assert stop_seconds({"ANTIPHON_STOP_SECONDS": "130"}, 10.0, 20.0) == 120.0
    with pytest.raises(ValueError, match=r"ANTIPHON_STOP_SECONDS='soon' must be .* Set it to 30"):
        stop_seconds({"ANTIPHON_STOP_SECONDS": "soon"}, 10.0, 20.0)
