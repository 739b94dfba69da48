from attrs import evolve

from graphs.catalog import attention_body, bodies, keys, mlp_body, variants
from graphs.config import Config
from graphs.keys import Buckets
from graphs.packing import TRANSPOSED, Layout
from graphs.parameters import fuse
from graphs.settings import GraphSettings
from tests.graphs import tiny
from tests.graphs.steps import EDITING, SETTINGS

CONFIG = Config.from_json(tiny.config_json())


def test_every_file_of_variants_is_found_under_its_own_name() -> None:
    assert set(variants()) == {"greedy", "sample", "greedy_logprobs", "sample_logprobs"}
    assert all(name == variant.name for name, variant in variants().items())
    assert [name for name, variant in variants().items() if variant.with_best] == ["greedy_logprobs", "sample_logprobs"]


def test_keys_are_all_shapes_in_all_variants() -> None:
    found = keys(SETTINGS)
    assert len(found) == len(set(found)) == (4 * 2 + 2 * 3 * 2 * 2) * 4
    assert all(key.tokens == 1 for key in found if key.family == "decode")
    assert not any(key.is_scored for key in found if key.family == "decode")
    assert {key.edits for key in found} == {""}


def test_keys_of_edits_are_those_the_settings_allow() -> None:
    plain, masked = keys(SETTINGS), keys(evolve(SETTINGS, takes_mask=True))
    assert set(plain) < set(masked)
    assert len(masked) == 2 * len(plain)
    found = keys(EDITING)
    assert len(found) == len(set(found)) == 8 * len(plain)
    assert {(key.edits, key.adjust_tokens) for key in found if "adjusted" in key.edits} == {
        *(("adjusted", size) for size in (4, 16, 256)),
        *(("masked_adjusted", size) for size in (4, 16, 256)),
    }
    assert "decode-b1-t1-p2-greedy-masked_adjusted16" in {str(key) for key in found}
    assert "prefill-b1-t64-p2-sample-masked-scored" in {str(key) for key in found}


def test_every_layer_of_every_key_has_a_body_that_covers_its_rows_and_pages() -> None:
    catalogue = {body.name: body for body in bodies(CONFIG, SETTINGS)}
    for key in keys(SETTINGS):
        for kind in CONFIG.layer_kinds:
            attention = catalogue[attention_body(CONFIG, SETTINGS, key, kind.attention).name]
            assert attention.part == kind.attention
            assert attention.rows[0] <= key.batch <= attention.rows[1]
            assert attention.pages[0] <= key.pages <= attention.pages[1]
            mlp = catalogue[mlp_body(CONFIG, key, kind.mlp).name]
            tokens = key.batch * (64 if key.family == "prefill" else 1)
            assert mlp.part == kind.mlp
            assert mlp.rows[0] <= tokens <= mlp.rows[1]
    for name in ("threshold", "draw"):
        assert catalogue[name].rows == (1, 8)
    assert catalogue["score"].rows == (64, 64)


def test_edits_have_bodies_only_where_the_settings_allow_them() -> None:
    plain = bodies(CONFIG, SETTINGS)
    assert {body.name for body in plain}.isdisjoint({"mask", "adjust"})
    edited = bodies(CONFIG, EDITING)
    assert [body for body in edited if body.part not in ("mask", "adjust")] == plain
    assert {body.rows for body in edited if body.part in ("mask", "adjust")} == {(1, 8)}
    assert edited[-1].name == plain[-1].name == "score"


def test_bodies_are_few_and_long_contexts_come_last() -> None:
    pages = (1, 2, 4, 8, 16, 32, 64)
    buckets = Buckets((1, 2, 4, 8, 16, 32), (1, 2, 4), (64, 128, 256), pages)
    found = bodies(CONFIG, GraphSettings(buckets, num_slots=33, num_pages=513))
    regimes = [body.regime for body in found]
    assert regimes[:-1] == sorted(regimes[:-1])
    assert [body.name for body in found] == [
        "decode-kda",
        "decode-dsa-dense",
        "mlp-dense",
        "mlp-moe-few",
        "threshold",
        "draw",
        "mlp-moe-crowded",
        "prefill-kda",
        "prefill-dsa-dense",
        "decode-dsa-sparse",
        "prefill-dsa-sparse",
        "score",
    ]
    assert {body.pages for body in found if body.part == "dsa"} == {(1, 16), (32, 64)}
    assert {body.rows for body in found if body.part == "moe"} == {(1, 2), (4, 256)}


def test_a_single_bucket_gives_bodies_of_one_size() -> None:
    fixed = GraphSettings(Buckets((4,), (4,), (64,), (2,)), num_slots=5, num_pages=9)
    assert {body.rows for body in bodies(CONFIG, fixed) if body.part not in ("dense", "moe", "score")} == {(4, 4)}


def test_packed_weights_read_back_as_they_were() -> None:
    weights = fuse(CONFIG, tiny.random_tensors(CONFIG, 0).__getitem__)
    for layer in weights.layers:
        layout = Layout.of(layer)
        views = layout.unpack(layout.pack(layer))
        assert views.keys() == layer.keys()
        assert all((views[name] == layer[name]).all() for name in layer)
        assert all(view.transpose(-1, -2).is_contiguous() for name, view in views.items() if name in TRANSPOSED)
        assert all(view.is_contiguous() for name, view in views.items() if name not in TRANSPOSED)
        assert all(view.data_ptr() % 64 == 0 for view in views.values())


def test_layers_of_a_kind_have_one_layout() -> None:
    weights = fuse(CONFIG, tiny.random_tensors(CONFIG, 0).__getitem__)
    layouts = {kind: set() for kind in CONFIG.layer_kinds}  # type: ignore[var-annotated]
    for kind, layer in zip(CONFIG.layer_kinds, weights.layers, strict=True):
        layouts[kind].add(Layout.of(layer))
    assert all(len(found) == 1 for found in layouts.values())
