"""Signatures: a file is believed only if a trusted key signed just this file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner
from tests.unit.conftest import Run
from tests.unit.test_package_contents import wheel

from torchsmith.checks import Check
from torchsmith.engine.build import build
from torchsmith.engine.store import Store
from torchsmith.errors import HostError
from torchsmith.package.envelope import (
    PAYLOAD_TYPE,
    SignatureError,
    check,
    claims,
    envelope_path,
    report_signer,
    seal,
    sign_report,
)
from torchsmith.package.keys import ensure_signer, own_key, read_public, signer, trusted_keys
from torchsmith.plan.attest import Attest
from torchsmith.plan.models import Plan, Step, Task
from torchsmith.verify.report import Report, beside, keep_beside

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def told(artifact: Path, name: str = "", predicate: object = None) -> bytes:
    digest = hashlib.sha256(artifact.read_bytes()).hexdigest()
    return json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": name or artifact.name, "digest": {"sha256": digest}}],
            "predicateType": "https://slsa.dev/provenance/v1",
            "predicate": predicate or {},
        }
    ).encode()


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A wheel with its signature beside it."""
    path = wheel(tmp_path)
    envelope_path(path).write_bytes(seal(told(path), signer()))
    return path


def envelope(artifact: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(envelope_path(artifact).read_bytes())
    return read


def put(artifact: Path, content: object) -> None:
    envelope_path(artifact).write_text(json.dumps(content), encoding="utf-8")


def refused(artifact: Path) -> SignatureError:
    with pytest.raises(SignatureError) as caught:
        check(artifact, trusted_keys())
    assert caught.value.exit_code == 9
    assert caught.value.hint
    return caught.value


def test_a_signed_file_is_believed(signed: Path) -> None:
    found = check(signed, trusted_keys())
    key = own_key()
    assert key is not None
    assert found.signer == key
    assert found.claim.subjects[0][0] == signed.name


def test_a_file_that_was_changed_is_refused(signed: Path) -> None:
    content = bytearray(signed.read_bytes())
    content[len(content) // 2] ^= 1
    signed.write_bytes(content)
    problem = refused(signed)
    assert problem.state == "changed file"
    assert "is not the file that was signed" in problem.message


def test_a_payload_that_was_changed_is_refused(signed: Path) -> None:
    outer = envelope(signed)
    other = base64.b64decode(outer["payload"]).replace(b"slsa.dev", b"evil.dev")
    put(signed, {**outer, "payload": base64.b64encode(other).decode()})
    assert refused(signed).state == "changed envelope"


def test_a_signature_that_was_changed_is_refused(signed: Path) -> None:
    outer = envelope(signed)
    raw = bytearray(base64.b64decode(outer["signatures"][0]["sig"]))
    raw[5] ^= 1
    outer["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    put(signed, outer)
    assert refused(signed).state == "changed envelope"


def test_a_type_that_was_changed_is_refused(signed: Path) -> None:
    put(signed, {**envelope(signed), "payloadType": "text/plain"})
    assert refused(signed).state == "broken"


def test_the_envelope_of_another_file_is_refused(signed: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-1.0-py3-none-any.whl"
    other.write_bytes(b"another")
    envelope_path(signed).write_bytes(seal(told(other), signer()))
    problem = refused(signed)
    assert problem.state == "another file"
    assert other.name in problem.message


def test_a_key_that_nobody_trusts_is_refused(signed: Path) -> None:
    envelope_path(signed).write_bytes(seal(told(signed), CryptoSigner.generate_ed25519()))
    problem = refused(signed)
    assert problem.state == "unknown key"
    assert "torchsmith key trust" in problem.hint


def test_an_unknown_key_that_takes_a_trusted_name_is_refused(signed: Path) -> None:
    outer = envelope(signed)
    forged = json.loads(seal(told(signed), CryptoSigner.generate_ed25519()))
    forged["signatures"][0]["keyid"] = outer["signatures"][0]["keyid"]
    put(signed, forged)
    assert refused(signed).state == "changed envelope"


def test_a_file_without_envelope_is_unsigned(tmp_path: Path) -> None:
    assert refused(wheel(tmp_path)).state == "unsigned"


@pytest.mark.parametrize(
    "content",
    [b"", b"\n\n", b"{}", b"[]", b"null", b"\x00\xff", b'{"payload": 1}', b"[" * 100_000],
)
def test_what_is_no_envelope_is_refused(signed: Path, content: bytes) -> None:
    envelope_path(signed).write_bytes(content)
    assert refused(signed).state == "broken"


@pytest.mark.parametrize("name", [None, 5, True])
def test_a_signer_without_a_name_is_refused(signed: Path, name: object) -> None:
    read = envelope(signed)
    read["signatures"][0]["keyid"] = name
    put(signed, read)
    assert refused(signed).state == "broken"


def test_a_signed_text_that_is_no_statement_is_refused(signed: Path) -> None:
    envelope_path(signed).write_bytes(seal(b'{"subject": []}', signer()))
    assert refused(signed).state == "broken"


def test_one_good_line_is_enough_and_the_nearest_problem_is_told(signed: Path) -> None:
    good = envelope_path(signed).read_bytes()
    foreign = seal(told(signed), CryptoSigner.generate_ed25519())
    envelope_path(signed).write_bytes(foreign + good)
    assert check(signed, trusted_keys()).signer.own
    assert len(claims(signed)) == 2
    signed.write_bytes(signed.read_bytes() + b"x")
    assert refused(signed).state == "changed file"


def test_a_signed_file_under_another_name_is_refused(signed: Path, tmp_path: Path) -> None:
    other = signed.with_name("numpy-9.9-cp311-cp311-linux_x86_64.whl")
    envelope_path(signed).rename(envelope_path(other))
    signed.rename(other)
    problem = refused(other)
    assert problem.state == "renamed"
    assert signed.name in problem.message


def test_a_statement_of_another_kind_does_not_say_who_made_it(signed: Path) -> None:
    text = told(signed).replace(b"slsa.dev/provenance/v1", b"example.org/anything/v1")
    envelope_path(signed).write_bytes(seal(text, signer()))
    assert refused(signed).state == "another kind"


def test_a_revoked_key_is_believed_no_more(signed: Path, run: Run) -> None:
    key = own_key()
    assert key is not None
    assert run("key", "revoke", key.id)[0] == 0
    assert refused(signed).state == "revoked key"
    assert "revoked" in run("key", "list")[1]
    # Nor when it is named.
    named = signed.with_name("named.pem")
    named.write_text(key.pem)
    code, _, said = run("verify", "--signature", "--key", str(named), str(signed))
    assert code == 9
    assert "revoked" in said


def test_a_key_is_believed_to_its_last_day_only(signed: Path, run: Run, tmp_path: Path) -> None:
    theirs = CryptoSigner.generate_ed25519()
    envelope_path(signed).write_bytes(seal(told(signed), theirs))
    pem = tmp_path / "theirs.pem"
    pem.write_bytes(_public(theirs))
    assert run("key", "trust", str(pem), "--until", "2999-01-01")[0] == 0
    assert check(signed, trusted_keys()).signer.until == "2999-01-01"
    assert run("key", "trust", str(pem), "--until", "2020-01-01")[0] == 0
    assert refused(signed).state == "expired key"
    assert run("key", "trust", str(pem), "--until", "tomorrow")[0] == 2
    assert run("key", "revoke", str(pem))[0] == 0
    assert run("key", "trust", str(pem))[0] == 2, "revoked is revoked"


def test_a_revoked_key_signs_nothing_more(signed: Path, run: Run) -> None:
    key = own_key()
    assert key is not None
    code, said, _ = run("key", "revoke", key.id)
    assert code == 0
    assert "key rotate" in said
    with pytest.raises(HostError, match="revoked") as caught:
        signer()
    assert "key rotate" in caught.value.hint
    # Before hours of compiling, too.
    attest = Task("attest", Attest({}, "one", {}, (), (), ()))
    plan = Plan("demo", (), (Step(id="attest-one", kind="package", title="Sign", task=attest),))
    with pytest.raises(HostError, match="revoked"):
        build(plan, Store(signed.parent / "store"), project=signed.parent)
    assert not (signed.parent / "store").exists()
    assert run("key", "list")[0] == 0
    assert run("key", "rotate")[0] == 0
    ensure_signer()
    envelope_path(signed).write_bytes(seal(told(signed), signer()))
    assert check(signed, trusted_keys())


@pytest.mark.parametrize("first", ["revoked", "believed"])
def test_one_of_two_signers_is_enough(first: str, signed: Path, run: Run, tmp_path: Path) -> None:
    theirs = CryptoSigner.generate_ed25519()
    pem = tmp_path / "theirs.pem"
    pem.write_bytes(_public(theirs))
    assert run("key", "trust", str(pem))[0] == 0
    both = Envelope(told(signed), PAYLOAD_TYPE, {})
    both.sign(signer())
    both.sign(theirs)
    put(signed, both.to_dict())
    own = own_key()
    assert own is not None
    gone, kept = (own.id, read_public(pem).id) if first == "revoked" else (str(pem), own.id)
    assert run("key", "revoke", gone)[0] == 0
    assert check(signed, trusted_keys()).signer.id == kept
    assert check(signed, trusted_keys()[::-1]).signer.id == kept


def test_a_day_that_is_over_is_said_to_be_so(signed: Path, run: Run, tmp_path: Path) -> None:
    pem = tmp_path / "theirs.pem"
    pem.write_bytes(_public(CryptoSigner.generate_ed25519()))
    code, said, _ = run("key", "trust", str(pem), "--until", "2020-01-01")
    assert code == 0
    assert "expired" in said
    assert "trusted now" not in said


def test_a_list_of_revoked_keys_is_taken(signed: Path, run: Run, tmp_path: Path) -> None:
    key = own_key()
    assert key is not None
    (tmp_path / "list").write_text(f"# stolen\n{'0' * 64}\n{key.id}  # mine\n")
    assert run("key", "revoke", str(tmp_path / "list"))[0] == 0
    assert refused(signed).state == "revoked key"
    assert run("key", "revoke", "nothing")[0] == 2


def test_what_the_old_key_signed_is_believed_after_a_rotation(signed: Path, run: Run) -> None:
    before = own_key()
    assert before is not None
    assert run("key", "rotate")[0] == 0
    after = own_key()
    assert after is not None
    assert after.id != before.id
    assert check(signed, trusted_keys()).signer.id == before.id
    envelope_path(signed).write_bytes(seal(told(signed), signer()))
    assert check(signed, trusted_keys()).signer.id == after.id


REPORT = Report(("tiny",), "0", (Check("wheel", "archive", "pass"),))


def test_a_report_that_nobody_signed_is_said_to_be_so(signed: Path, run: Run) -> None:
    digest = hashlib.sha256(signed.read_bytes()).hexdigest()
    report = structs.replace(REPORT, wheels={signed.name: digest})
    keep_beside(report, signed)
    assert "1 passed; claimed, not proven" in run("inspect", str(signed))[1]
    sign_report(report, signed)
    key = own_key()
    assert key is not None
    assert f"1 passed; signed by {key.id[:16]}" in run("inspect", str(signed))[1]
    assert check(signed, trusted_keys()), "how it was made is still signed"
    sign_report(report, signed)
    assert len(claims(signed)) == 2
    forged = beside(signed).read_bytes().replace(b'"archive"', b'"all"')
    beside(signed).write_bytes(forged)
    assert "claimed, not proven" in run("inspect", str(signed))[1]


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_a_report_that_is_no_file_is_not_waited_for(signed: Path, run: Run, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(beside(signed))
    else:
        beside(signed).symlink_to("/dev/zero")
    code, answer, _ = run("inspect", str(signed))
    assert code == 0
    assert "signed by" in answer
    assert report_signer(signed, trusted_keys(), "0" * 64, None) == ""


def test_a_report_is_also_signed_by_who_built_it(signed: Path, run: Run) -> None:
    keep_beside(REPORT, signed)
    item = {
        "name": beside(signed).name,
        "digest": {"sha256": hashlib.sha256(beside(signed).read_bytes()).hexdigest()},
    }
    predicate = {"runDetails": {"byproducts": [item]}}
    envelope_path(signed).write_bytes(seal(told(signed, predicate=predicate), signer()))
    assert "; signed by " in run("inspect", str(signed))[1]


def policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_policy_says_who_may_sign_what(signed: Path, run: Run, tmp_path: Path) -> None:
    key = own_key()
    assert key is not None
    entry = '[[allow]]\nartifact = "{}"\nkeys = ["{}"]\n'
    for text, code in (
        (entry.format("tiny-*", key.id), 0),
        (entry.format("torch-*", key.id), 9),
        (entry.format("*", "0" * 64), 9),
        (entry.format("*", "0" * 64) + entry.format("tiny*", key.id), 0),
        (entry.format("*", key.id) + 'sources = ["git+https://example.org/*"]\n', 9),
        (entry.format("*", key.id) + "report = true\n", 9),
        (entry.format("*", "short"), 2),
        (entry.format("*", key.id) + "unknown = 1\n", 2),
        ("", 2),
        ("allow = 5", 2),
    ):
        found, _, said = run("verify", str(signed), "--policy", policy(tmp_path, text))
        assert found == code, (text, said)
    assert run("verify", str(signed), "--policy", str(tmp_path / "none"))[0] == 2


def test_a_policy_may_ask_for_sources_and_a_report(signed: Path, run: Run, tmp_path: Path) -> None:
    key = own_key()
    assert key is not None
    source = {"name": "x", "uri": "git+https://example.org/x", "annotations": {"tree-sha256": "a"}}
    predicate = {"buildDefinition": {"resolvedDependencies": [source]}}
    envelope_path(signed).write_bytes(seal(told(signed, predicate=predicate), signer()))
    keep_beside(REPORT, signed)
    rules = policy(
        tmp_path,
        f'[[allow]]\nartifact = "*"\nkeys = ["{key.id}"]\nreport = true\n'
        'sources = ["git+https://example.org/*"]\n',
    )
    assert run("verify", str(signed), "--policy", rules)[0] == 9
    sign_report(REPORT, signed)
    assert run("verify", str(signed), "--policy", rules)[0] == 0


@pytest.mark.parametrize(
    "path", ["../other/x", "./x", "%2e%2e/other/x", "a/..", "..%2fother/x", "..\\other", "../x?y"]
)
def test_a_source_that_climbs_out_of_what_a_policy_allows_is_refused(
    signed: Path, run: Run, tmp_path: Path, path: str
) -> None:
    key = own_key()
    assert key is not None
    uri = f"git+https://example.org/trusted/{path}"
    source = {"name": "x", "uri": uri, "annotations": {"tree-sha256": "a"}}
    predicate = {"buildDefinition": {"resolvedDependencies": [source]}}
    envelope_path(signed).write_bytes(seal(told(signed, predicate=predicate), signer()))
    rules = policy(
        tmp_path,
        f'[[allow]]\nartifact = "*"\nkeys = ["{key.id}"]\n'
        'sources = ["git+https://example.org/trusted/*"]\n',
    )
    code, _, said = run("verify", str(signed), "--policy", rules)
    assert code == 9
    assert "other sources only" in said


def test_a_policy_may_ask_for_no_network_and_for_hashes(
    signed: Path, run: Run, tmp_path: Path
) -> None:
    key = own_key()
    assert key is not None
    allowed = f'[[allow]]\nartifact = "*"\nkeys = ["{key.id}"]\n'
    rules = policy(tmp_path, allowed + 'network = "none"\nhashed = true\n')
    tool = {"name": "tool", "uri": "pkg:pypi/tool@1"}
    hashed = {**tool, "digest": {"sha256": "0" * 64}}
    for network, item, code in (
        ("none", hashed, 0),
        ("none", tool, 9),
        ("open", hashed, 9),
        ("", hashed, 9),
    ):
        predicate = {
            "buildDefinition": {"resolvedDependencies": [item]},
            "runDetails": {"metadata": {"torchsmith_network": network}},
        }
        envelope_path(signed).write_bytes(seal(told(signed, predicate=predicate), signer()))
        found, _, said = run("verify", str(signed), "--policy", rules)
        assert found == code, (network, item, said)
    assert run("verify", str(signed), "--policy", policy(tmp_path, allowed + "network = 1"))[0] == 2


def test_a_bill_that_was_changed_is_refused(signed: Path) -> None:
    bill = signed.with_name(f"{signed.name}.cdx.json")
    bill.write_bytes(b"{}")
    item = {"name": bill.name, "digest": {"sha256": hashlib.sha256(b"{}").hexdigest()}}
    predicate = {"runDetails": {"byproducts": [item]}}
    envelope_path(signed).write_bytes(seal(told(signed, predicate=predicate), signer()))
    assert check(signed, trusted_keys())
    bill.write_bytes(b"{} ")
    assert refused(signed).state == "changed bill"


def test_the_command_says_who_signed_and_ends_with_9_where_nobody_did(
    signed: Path, run: Run, tmp_path: Path
) -> None:
    code, out, _ = run("verify", "--signature", str(signed))
    assert code == 0
    assert out.startswith(f"ok {signed.name}: signed by this machine's key ")
    code, out, _ = run("verify", "--signature", "--json", str(signed))
    key = own_key()
    assert key is not None
    assert json.loads(out)["signatures"] == [{"file": str(signed), "key": key.id}]

    theirs = CryptoSigner.generate_ed25519()
    envelope_path(signed).write_bytes(seal(told(signed), theirs))
    code, _, err = run("verify", "--signature", str(signed))
    assert code == 9
    assert "not trusted" in err
    code, out, _ = run("inspect", str(signed))
    assert code == 0
    assert "unknown key" in out

    pem = tmp_path / "theirs.pem"
    pem.write_bytes(_public(theirs))
    code, out, _ = run("verify", "--signature", str(signed), "--key", str(pem))
    assert code == 0, out
    assert "the trusted key" in out
    # Named for once, not trusted for good.
    assert run("verify", "--signature", str(signed))[0] == 9
    assert run("key", "trust", str(pem))[0] == 0
    assert run("verify", "--signature", str(signed))[0] == 0
    code, out, _ = run("inspect", str(signed))
    assert f"signed by the trusted key {read_public(pem).id[:16]}" in out
    # One that is named is the only one that counts.
    mine = run("key", "export", "--output", "mine.pem")
    assert mine[0] == 0
    assert run("verify", "--signature", str(signed), "--key", "mine.pem")[0] == 9
    assert run("verify", "--signature", str(tmp_path))[0] == 2


def _public(made: CryptoSigner) -> bytes:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    public = load_pem_private_key(made.private_bytes, None).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
