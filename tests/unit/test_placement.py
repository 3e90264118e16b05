"""Placement is a pure function; its errors name the setting and the live nodes."""

from __future__ import annotations

import pytest

from splitreel.cluster.placement import Node, Wish, find, place
from splitreel.errors import PlacementError

A = Node("a" * 56, "10.0.0.1", "spark-a", gpus=1, free_gpus=1, labels={"rack": "left"})
B = Node("b" * 56, "10.0.0.2", "spark-b", gpus=1, free_gpus=1, labels={"rack": "right"})
CPU = Node("c" * 56, "10.0.0.3", "desk")


def wish(worker: str, node: str | None = None, gpus: float = 1) -> Wish:
    return Wish(worker, f"roles.{worker}.node", node, gpus)


@pytest.mark.parametrize("name", ["10.0.0.2", "spark-b", "b" * 56, "b" * 8, "rack=right"])
def test_a_node_by_address_host_name_id_or_label(name: str) -> None:
    assert place([wish("dit", name)], [A, B]) == {"dit": B}


def test_workers_without_a_wish_are_spread() -> None:
    assert place([wish("encoder_decoder"), wish("dit")], [A, B]) == {"encoder_decoder": A, "dit": B}
    placed = place([wish("encoder_decoder", gpus=0), wish("dit", gpus=0)], [CPU])
    assert placed == {"encoder_decoder": CPU, "dit": CPU}


def test_workers_of_one_label_are_spread_over_its_nodes() -> None:
    one, other = (
        Node(digit * 56, f"10.0.0.{digit}", f"spark-{digit}", gpus=1, free_gpus=1, labels={"kind": "spark"})
        for digit in ("2", "1")
    )
    labelled = [wish("dit.0", "kind=spark"), wish("dit.1", "kind=spark")]
    assert place(labelled, [one, other]) == {"dit.0": other, "dit.1": one}
    with pytest.raises(PlacementError, match=r"found 0 of 1 free"):
        place([*labelled, wish("dit.2", "kind=spark")], [one, other])
    no_gpu = [wish("dit.0", "kind=spark", gpus=0), wish("dit.1", "kind=spark", gpus=0)]
    assert place(no_gpu, [one, other]) == {"dit.0": other, "dit.1": one}


def test_a_wish_goes_before_no_wish() -> None:
    assert place([wish("encoder_decoder"), wish("dit", "spark-a")], [A, B]) == {"dit": A, "encoder_decoder": B}


def test_an_unknown_node() -> None:
    with pytest.raises(PlacementError) as caught:
        place([wish("dit", "192.168.9.2")], [A, B])
    message = str(caught.value)
    assert "roles.dit.node: expected '192.168.9.2', found no live Ray node of that name" in message
    assert '10.0.0.1 "spark-a" 1 GPU' in message
    assert '10.0.0.2 "spark-b" 1 GPU' in message
    assert "Start Ray there or change roles.dit.node." in message


def test_the_same_node_twice_needs_devices_for_both() -> None:
    with pytest.raises(
        PlacementError, match=r"roles\.dit\.node: expected 1 free GPU on node 10\.0\.0\.1, found 0 of 1 free, 1 of them"
    ):
        place([wish("encoder_decoder", "spark-a"), wish("dit", "spark-a")], [A, B])
    two = Node(A.node_id, A.address, A.hostname, gpus=2, free_gpus=2)
    assert place([wish("encoder_decoder", "spark-a"), wish("dit", "spark-a")], [two]) == {
        "encoder_decoder": two,
        "dit": two,
    }


def test_a_busy_gpu_names_its_holder() -> None:
    busy = Node(B.node_id, B.address, B.hostname, gpus=1, free_gpus=0, holders=("Trainer of job 02000000",))
    with pytest.raises(PlacementError, match=r"found 0 of 1 free, held by Trainer of job 02000000"):
        place([wish("dit", "spark-b")], [A, busy])


def test_no_node_with_a_gpu() -> None:
    with pytest.raises(PlacementError, match=r"expected a node with 1 free GPU, found none.*Live: 10\.0\.0\.3"):
        place([wish("dit")], [CPU])
    with pytest.raises(PlacementError, match="Live: none"):
        place([wish("dit")], [])


def test_an_ambiguous_host_name() -> None:
    twin = Node("d" * 56, "10.0.0.4", "spark-a", gpus=1, free_gpus=1)
    with pytest.raises(PlacementError, match=r"found 2 nodes of that name.*Use the node id"):
        place([wish("dit", "spark-a")], [A, twin])
    assert find("d" * 9, [A, twin]) == [twin]


@pytest.mark.parametrize("name", ["0.0.0.0", "::"])
def test_addresses_that_name_no_node(name: str) -> None:
    with pytest.raises(PlacementError, match="expected the address of one node"):
        place([wish("dit", name)], [A, B])
