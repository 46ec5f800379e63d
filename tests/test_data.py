"""Texts, splits, windows and the two baselines, each against a brute-force loop."""

import gc
import sys
import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_gpt import data
from numpy_gpt.data import bigram_loss, load_text, ordered_windows, split, unigram_loss, windows
from numpy_gpt.ops import IGNORE_INDEX

LOCAL_SHAKESPEARE = Path(__file__).parents[2] / "shared" / "data" / "tinyshakespeare.txt"


# Texts


def test_the_embedded_text():
    from pydoc_data.topics import topics

    text = load_text()
    assert text == load_text("stdlib") == "\n".join(topics[name] for name in sorted(topics))
    assert 300_000 < len(text) < 1_000_000  # about 465,000, by the version of Python
    assert text.startswith('The "assert" statement')


def test_a_python_without_its_help_topics(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"^stdlib: this Python comes without its help topics: .*; name a file$"):
        load_text()


def test_a_file_is_returned_as_it_is(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffé👍\r\nline\rline\n\x00".encode())
    assert load_text(path) == load_text(str(path)) == "\ufeffé👍\r\nline\rline\n\x00"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the text: No such file"),
        (b"", "the file is empty"),
        (b"abc\xff", "not UTF-8 at byte 3: invalid start byte"),
        ("é".encode("utf-16"), "not UTF-8 at byte 0"),
        (b"ab\xc3\xa9c\xc3", "not UTF-8 at byte 5: unexpected end of data"),
    ],
)
def test_a_file_that_is_no_text(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        load_text(str(path))
    assert str(path) in str(error.value)


def test_a_directory_is_no_text(tmp_path):
    with pytest.raises(ValueError, match="cannot read the text") as error:
        load_text(tmp_path)
    assert str(tmp_path) in str(error.value)


# Tiny Shakespeare, from a server on this machine


@pytest.fixture
def serve(monkeypatch):
    """serve(content) answers every request at SHAKESPEARE_URL with content; .requests counts them."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(content, status=200):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.server.requests += 1
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *args):
                """Print nothing."""

        server = HTTPServer(("127.0.0.1", 0), Handler)
        server.requests = 0
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        monkeypatch.setattr(data, "SHAKESPEARE_URL", f"http://127.0.0.1:{server.server_port}/input.txt")
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()
    gc.collect()  # what pooch leaves open after an error warns in the test that opened it


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_shakespeare_is_downloaded_once(tmp_path, monkeypatch, serve):
    import pooch

    if not LOCAL_SHAKESPEARE.is_file():
        pytest.skip("needs a copy of tiny Shakespeare")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / name)
    server = serve(LOCAL_SHAKESPEARE.read_bytes())
    text = load_text("shakespeare")
    assert text == load_text("shakespeare")
    assert len(text) == 1_115_394
    assert text.startswith("First Citizen:")
    assert server.requests == 1
    cached = tmp_path / "numpy_gpt" / "tinyshakespeare.txt"
    assert cached.read_text("utf-8") == text
    cached.write_text("altered", encoding="utf-8")  # is found out, and downloaded again
    assert load_text("shakespeare") == text
    assert server.requests == 2


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_download_with_the_right_hash(tmp_path, monkeypatch, serve):
    """The same path where no copy of tiny Shakespeare is at hand."""
    monkeypatch.setattr(data, "SHAKESPEARE_SHA256", sha256("né".encode()).hexdigest())
    server = serve("né".encode())
    assert data.download_shakespeare(tmp_path) == data.download_shakespeare(tmp_path)
    assert load_text(data.download_shakespeare(tmp_path)) == "né"
    assert server.requests == 1


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_a_download_with_a_wrong_hash_leaves_nothing(tmp_path, serve):
    server = serve(b"To be, or not to be")
    with pytest.raises(ValueError, match="does not match the known hash") as error:
        data.download_shakespeare(tmp_path)
    assert data.SHAKESPEARE_SHA256 in str(error.value)
    check_download_error(error)
    assert server.requests == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_page_that_is_not_there(tmp_path, serve):
    serve(b"no such page", status=404)
    with pytest.raises(ValueError, match="404") as error:
        data.download_shakespeare(tmp_path)
    check_download_error(error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_no_network(tmp_path, monkeypatch, serve):
    server = serve(b"")
    monkeypatch.setattr(data, "SHAKESPEARE_URL", "http://127.0.0.1:1/input.txt")  # nobody listens at port 1
    with pytest.raises(ValueError, match="no connection") as error:
        data.download_shakespeare(tmp_path)
    check_download_error(error)
    assert server.requests == 0
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot download") as error:
        data.download_shakespeare(tmp_path / "file")
    check_download_error(error)


def check_download_error(error):
    message = str(error.value)
    assert "\n" not in message
    assert data.SHAKESPEARE_URL in message
    assert "a copy of yours works by its path" in message


# Split


@pytest.mark.parametrize(
    ("N", "validation", "n_held_out"), [(100, 0.1, 10), (100, 0.29, 29), (95, 0.5, 48), (10, 0.2, 2)]
)
def test_the_last_share_is_held_out(N, validation, n_held_out):
    train, held_out = split(np.arange(N), T=1, validation=validation)
    assert len(held_out) == n_held_out
    np.testing.assert_array_equal(np.concatenate([train, held_out]), np.arange(N))


def test_a_side_of_exactly_one_window():
    T = 9
    train, held_out = split(np.arange(100), T)
    assert len(held_out) == T + 1
    idx, targets = windows(held_out, 1, T, np.random.default_rng(0))
    np.testing.assert_array_equal(idx, [np.arange(90, 99)])
    np.testing.assert_array_equal(targets, [np.arange(91, 100)])
    train, _ = split(np.arange(100), T, validation=0.9)
    assert len(train) == T + 1


@pytest.mark.parametrize("validation", [0.1, 0.9])
def test_a_corpus_shorter_than_a_window_is_refused(validation):
    sizes = "90 to train on and 10" if validation == 0.1 else "10 to train on and 90"
    with pytest.raises(ValueError, match=rf"^100 tokens make {sizes} held out; each side needs T \+ 1 = 11"):
        split(np.arange(100), T=10, validation=validation)
    with pytest.raises(ValueError, match="0 tokens make 0"):
        split(np.arange(0), T=10, validation=validation)


@pytest.mark.parametrize("validation", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(validation):
    with pytest.raises(ValueError, match=f"validation must lie in 0 < validation < 1, got {validation}"):
        split(np.arange(100), 1, validation)


# Windows


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 30), st.sampled_from(["uint16", "int32", "int64"]))
def test_targets_are_the_next_ids(B, T, extra, dtype):
    tokens = np.random.default_rng(1).permutation(60)[: T + extra].astype(dtype)  # distinct: a window shows its place
    idx, targets = windows(tokens, B, T, np.random.default_rng(B))
    assert idx.shape == targets.shape == (B, T)
    assert idx.dtype == targets.dtype == np.int64
    for row in range(B):
        start = tokens.tolist().index(idx[row, 0])
        np.testing.assert_array_equal(idx[row], tokens[start : start + T])
        np.testing.assert_array_equal(targets[row], tokens[start + 1 : start + T + 1])


def test_every_window_can_come():
    idx, targets = windows(np.arange(12), 500, 4, np.random.default_rng(0))
    assert set(idx[:, 0]) == set(range(8))  # starts 0..7
    assert targets.max() == 11  # the last token is a target too


def test_the_same_seed_gives_the_same_windows():
    tokens = np.arange(1000)
    first, again, other = (windows(tokens, 8, 5, np.random.default_rng(seed))[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_tokens_that_hold_no_window_are_refused():
    with pytest.raises(ValueError, match=r"5 tokens hold no window of T \+ 1 = 6"):
        windows(np.arange(5), 2, 5, np.random.default_rng(0))


@pytest.mark.parametrize("tokens", [np.arange(9.0), np.arange(18).reshape(9, 2), np.arange(9) > 3])
def test_tokens_that_are_no_ids_are_refused(tokens):
    with pytest.raises(ValueError, match=r"tokens must be one row of whole numbers \(N,\), got"):
        windows(tokens, 2, 5, np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"tokens must be one row of whole numbers \(N,\), got"):
        ordered_windows(tokens, 2, 5)
    with pytest.raises(TypeError, match="expected a NumPy or CuPy array, got list"):
        windows(tokens.tolist(), 2, 5, np.random.default_rng(0))


@pytest.mark.parametrize(("B", "T"), [(0, 1), (1, 0), (-1, 2)])
def test_windows_of_no_size_are_refused(B, T):
    with pytest.raises(ValueError, match=f"got B = {B} and T = {T}"):
        windows(np.arange(9), B, T, np.random.default_rng(0))
    with pytest.raises(ValueError, match=f"got B = {B} and T = {T}"):
        ordered_windows(np.arange(9), B, T)


@given(st.integers(2, 60), st.integers(1, 5), st.integers(1, 12))
def test_ordered_windows_score_every_token_once(N, B, T):
    tokens = np.random.default_rng(N).integers(1, 99, size=N)
    batches = list(ordered_windows(tokens, B, T))
    for idx, targets in batches:
        assert idx.shape == targets.shape
        assert idx.shape[1] == T
        assert idx.dtype == targets.dtype == np.int64
    assert all(len(idx) == B for idx, _ in batches[:-1])
    assert 1 <= len(batches[-1][0]) <= B
    idx, targets = (np.concatenate(rows).reshape(-1) for rows in zip(*batches, strict=True))
    counted = targets != IGNORE_INDEX
    np.testing.assert_array_equal(idx[counted], tokens[:-1])
    np.testing.assert_array_equal(targets[counted], tokens[1:])
    assert counted[: N - 1].all()  # the filling stands at the end
    assert len(idx) - (N - 1) < T  # and is less than a window
    np.testing.assert_array_equal(idx[~counted], 0)


@pytest.mark.parametrize("N", [0, 1])
def test_nothing_to_score_is_refused_at_once(N):
    with pytest.raises(ValueError, match=f"{N} tokens hold no next token"):
        ordered_windows(np.arange(N), 1, 4)


# Baselines


def unigram_by_hand(train, v, V):
    return (sum(token == v for token in train) + 1) / (len(train) + V)


def bigram_by_hand(train, u, v, V):
    followers = [b for a, b in pairwise(train) if a == u]
    n_u = len(set(followers))
    if n_u == 0:
        return unigram_by_hand(train, v, V)
    weight = n_u / (len(followers) + n_u)
    share = followers.count(v) / len(followers)
    return (1 - weight) * share + weight * unigram_by_hand(train, v, V)


CORPORA = st.tuples(
    st.lists(st.integers(0, 6), min_size=2, max_size=40), st.lists(st.integers(0, 6), min_size=2, max_size=20)
)


@given(CORPORA, st.sampled_from(["uint16", "int64"]))
def test_baselines_are_those_of_brute_force(corpora, dtype):
    V = 7
    train, held_out = corpora
    arrays = (np.array(train, dtype=dtype), np.array(held_out, dtype=dtype))
    expected = -np.mean([np.log(unigram_by_hand(train, v, V)) for v in held_out[1:]])
    assert unigram_loss(*arrays, V) == pytest.approx(expected, rel=1e-13)
    expected = -np.mean([np.log(bigram_by_hand(train, u, v, V)) for u, v in pairwise(held_out)])
    assert bigram_loss(*arrays, V) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("loss", [unigram_loss, bigram_loss])
@pytest.mark.parametrize("u", range(9))
def test_the_probabilities_of_the_next_token_sum_to_one(loss, u):
    V = 9
    train = np.random.default_rng(5).integers(0, 7, size=50)  # tokens 7 and 8 never come
    p = [np.exp(-loss(train, np.array([u, v]), V)) for v in range(V)]
    assert sum(p) == pytest.approx(1, rel=1e-13)
    assert min(p) > 0


def test_baselines_at_gpt2s_vocabulary():
    """Ids near V: a pair's number is beyond 32 bits, and no V × V table is made."""
    V = 50257
    train = np.array([50256, 50255] * 50 + [0], dtype=np.uint16)
    assert bigram_loss(train, np.array([50256, 50255]), V) < 0.03
    assert bigram_loss(train, np.array([50256, 0]), V) > 8
    assert bigram_loss(train, np.array([7, 8]), V) == pytest.approx(np.log(len(train) + V), rel=1e-13)


def test_a_bigram_beats_a_unigram_on_text():
    tokens = np.frombuffer(load_text().encode("utf-8"), dtype=np.uint8)
    train, held_out = split(tokens, T=256)
    unigram, bigram = unigram_loss(train, held_out, 256), bigram_loss(train, held_out, 256)
    assert bigram < unigram - 0.5 < np.log(256)


@pytest.mark.parametrize("loss", [unigram_loss, bigram_loss])
def test_baseline_errors(loss):
    good = np.array([0, 1, 2])
    with pytest.raises(ValueError, match=r"held_out\[1\] is 3; ids must lie in 0 <= id < V = 3"):
        loss(good, np.array([0, 3]), 3)
    with pytest.raises(ValueError, match=r"train\[0\] is -1"):
        loss(np.array([-1, 0]), good, 3)
    with pytest.raises(ValueError, match="train must be integers, got dtype float64"):
        loss(np.array([0.0, 1.0]), good, 3)
    with pytest.raises(ValueError, match="held_out has 1 tokens"):
        loss(good, good[:1], 3)
    with pytest.raises(ValueError, match="train has 0 tokens"):
        loss(good[:0], good, 3)
