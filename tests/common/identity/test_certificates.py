"""Promises of common/identity/certificates.py: names, certificates, requests, invitation lines."""

from __future__ import annotations

import datetime
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from semisilo.common.errors import BadPayload, ClockSkew, InvitationInvalid, StorageDamaged, UsageError, WrongAuthority
from semisilo.common.identity import certificates
from semisilo.common.identity.invitation import InvitationLine, decode_invitation, encode_invitation
from tests.each_of import each_of

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
DAY = 86400.0


@pytest.fixture(scope="module")
def authority() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    return certificates.make_authority("lung", now=NOW)


def _line(authority, **changes: object) -> InvitationLine:
    values = {"address": "hub.example:8443", "enrollment_address": "hub.example:8444", "federation": "lung",
              "silo": "hospital-a", "token": "t" * 43, "expires_unix": NOW + DAY,
              "authority_der": certificates.certificate_der(authority[1]), **changes}
    return InvitationLine(**values)


@each_of("name", ["a", "0", "hospital-a", "a" * 63, "a-"])
def test_names_of_lower_case_letters_digits_and_hyphens_are_allowed(name):
    assert certificates.check_name(name) == name


@each_of("name", ["", "-a", "A", "a_b", "a.b", "a b", "a\n", "a" * 64, "ä", "../x", "a:silo:b", "١"])
def test_every_other_name_is_refused(name):
    with pytest.raises(UsageError):
        certificates.check_name(name)


def test_the_authority_signs_end_certificates_of_its_own_domain_only(authority):
    _, certificate = authority
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert life == datetime.timedelta(days=3652, minutes=10)
    basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
    names = certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert names.critical
    assert names.value.permitted_subtrees == [x509.DNSName("lung.semisilo")]
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature
    certificate.verify_directly_issued_by(certificate)


def test_a_silo_certificate_names_the_silo_in_its_uri_and_lasts_thirty_days(authority):
    key = certificates.make_key()
    certificate = certificates.issue_silo_certificate(*authority, key.public_key(), "hospital-a", now=NOW)
    assert certificates.silo_uri_of(certificate) == "urn:semisilo:lung:silo:hospital-a"
    assert certificates.not_before_unix(certificate) == NOW - 600
    assert certificates.not_after_unix(certificate) == NOW + 30 * DAY
    use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    certificates.check_silo_certificate(certificate, authority[1], silo="hospital-a", public_key=key.public_key())


def test_the_coordinators_certificate_carries_the_dns_name_of_its_federation(authority):
    certificate = certificates.issue_coordinator_certificate(*authority, certificates.make_key().public_key(), now=NOW)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.lung.semisilo"]
    assert certificates.silo_uri_of(certificate) == ""
    use = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(use) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_no_certificate_outlives_the_authority(authority):
    near_the_end = NOW + certificates.AUTHORITY_SECONDS - DAY
    certificate = certificates.issue_silo_certificate(*authority, certificates.make_key().public_key(), "a",
                                                      now=near_the_end)
    assert certificates.not_after_unix(certificate) == NOW + certificates.AUTHORITY_SECONDS
    with pytest.raises(ClockSkew, match="authority ended") as caught:
        certificates.issue_silo_certificate(*authority, certificates.make_key().public_key(), "a",
                                            now=near_the_end + DAY)
    assert "Set that clock if it is wrong" in caught.value.remedy


def test_an_issued_certificate_is_checked_for_signature_name_and_key(authority):
    key, other = certificates.make_key(), certificates.make_authority("lung", now=NOW)
    good = certificates.issue_silo_certificate(*authority, key.public_key(), "hospital-a", now=NOW)
    with pytest.raises(WrongAuthority, match="not issued by"):
        certificates.check_silo_certificate(good, other[1], silo="hospital-a", public_key=key.public_key())
    with pytest.raises(WrongAuthority, match="carries the name"):
        certificates.check_silo_certificate(good, authority[1], silo="hospital-b", public_key=key.public_key())
    with pytest.raises(WrongAuthority, match="another key"):
        certificates.check_silo_certificate(good, authority[1], silo="hospital-a",
                                            public_key=certificates.make_key().public_key())


def test_a_certificate_with_two_names_names_nobody(authority):
    """A second URI could be the one that another reader takes for the name."""
    key = certificates.make_key()
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(certificates.silo_uri("lung", silo))
                                         for silo in ("a", "b")])
    moment = datetime.datetime.fromtimestamp(NOW, datetime.UTC)
    certificate = (x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(authority[1].subject)
                   .public_key(key.public_key()).serial_number(1).not_valid_before(moment)
                   .not_valid_after(moment + datetime.timedelta(days=1)).add_extension(names, critical=True)
                   .sign(authority[0], hashes.SHA256()))
    assert certificates.silo_uri_of(certificate) == ""


@each_of("uri", ["", "urn:semisilo:lung:silo:", "urn:semisilo:lung:silo:a:b", "urn:semisilo:lung:a",
                 "URN:semisilo:lung:silo:a", "urn:semisilo:lung:silo:a\n", "https://lung/silo/a"])
def test_only_the_exact_form_of_a_silo_uri_is_read(uri):
    assert certificates.split_silo_uri(uri) is None
    assert certificates.split_silo_uri("urn:semisilo:lung:silo:a-1") == ("lung", "a-1")


def test_a_request_proves_its_key_and_names_nobody():
    key = certificates.make_key()
    der = certificates.make_request(key)
    assert certificates.fingerprint(certificates.read_request(der)) == certificates.fingerprint(key.public_key())
    assert len(x509.load_der_x509_csr(der).subject) == 0


def test_hostile_requests_are_refused():
    def request(key, algorithm=hashes.SHA256()) -> bytes:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hospital-b")])
        built = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, algorithm)
        return built.public_bytes(serialization.Encoding.DER)

    good = certificates.make_request(certificates.make_key())
    forged = bytearray(good)
    forged[-1] ^= 1
    for bad in (b"", b"\x30\x80", good[:-10], bytes(forged), good + b"\0" * 20000,
                request(ec.generate_private_key(ec.SECP384R1())),
                request(rsa.generate_private_key(public_exponent=65537, key_size=2048))):
        with pytest.raises(BadPayload):
            certificates.read_request(bad)
    # A name in the request is allowed and ignored: only the key is returned.
    assert isinstance(certificates.read_request(request(certificates.make_key())), ec.EllipticCurvePublicKey)


def test_an_invitation_line_returns_what_it_was_made_from(authority):
    invitation = _line(authority)
    line = encode_invitation(invitation)
    assert decode_invitation(line) == invitation
    assert line.startswith("semisilo-invite-v1.")
    assert set(line) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")
    assert len(line) < 1200
    assert invitation.token not in repr(invitation)


def test_an_invitation_line_survives_what_mail_programs_do_to_it(authority):
    line = encode_invitation(_line(authority))
    folded = "\n".join(line[i : i + 72] for i in range(0, len(line), 72))
    assert decode_invitation(f'  "{folded}"\n').silo == "hospital-a"


def test_a_line_that_is_cut_or_changed_anywhere_is_noticed(authority):
    line = encode_invitation(_line(authority))
    begin = len("semisilo-invite-v1.")
    for length in [*range(begin, len(line), 37), len(line) - 1]:
        with pytest.raises(InvitationInvalid, match="damaged or cut"):
            decode_invitation(line[:length])
    for at in range(begin, len(line) - 1, 29):
        changed = line[:at] + ("A" if line[at] != "A" else "B") + line[at + 1 :]
        with pytest.raises(InvitationInvalid, match="damaged or cut"):
            decode_invitation(changed)


@each_of("text", ["", "hello", "semisilo", "semisilo-invite-v1", "semisilo-invite-v1.",
                  "semisilo-invite-v1.ä", "semisilo-invite-v1." + "A" * 100_000])
def test_what_is_no_invitation_line_is_refused(text):
    with pytest.raises(InvitationInvalid):
        decode_invitation(text)


def test_a_line_of_a_later_version_says_so(authority):
    line = encode_invitation(_line(authority)).replace("-v1.", "-v2.")
    with pytest.raises(InvitationInvalid, match="semisilo-invite-v2"):
        decode_invitation(line)


def _of_version(version: int, der: bytes) -> bytes:
    """The same certificate, which says another version: no ValueError, where it is read."""
    number = b"\xa0\x03\x02\x01"
    assert der.count(number + b"\x02") == 1
    return der.replace(number + b"\x02", number + bytes([version]))


def test_a_request_or_certificate_of_another_version_is_as_any_that_cannot_be_read(authority):
    request = certificates.make_request(certificates.make_key())
    assert request.count(b"\x02\x01\x00") == 1
    with pytest.raises(BadPayload, match="cannot be read"):
        certificates.read_request(request.replace(b"\x02\x01\x00", b"\x02\x01\x01"))
    with pytest.raises(StorageDamaged, match="not a certificate"):
        certificates.load_certificate(_of_version(9, certificates.certificate_der(authority[1])))


def test_a_line_whose_parts_do_not_fit_together_is_refused(authority):
    """The checksum guards against accidents only; whoever makes a line can make its checksum."""
    for changes in ({"federation": "heart"}, {"silo": "../x"}, {"silo": 7}, {"expires_unix": float("inf")},
                    {"token": ""}, {"token": "t" * 300}, {"address": "hub example:1"}, {"address": None},
                    {"authority_der": b"no certificate"},
                    {"authority_der": _of_version(9, certificates.certificate_der(authority[1]))},
                    {"authority_der": certificates.certificate_der(certificates.issue_silo_certificate(
                        *authority, certificates.make_key().public_key(), "a", now=NOW))}):
        with pytest.raises(InvitationInvalid, match="contradicts itself"):
            decode_invitation(encode_invitation(_line(authority, **changes)))


def test_clocks_within_five_minutes_pass_and_others_are_told_which_way():
    certificates.check_clocks(silo_unix=NOW + 300, coordinator_unix=NOW)
    certificates.check_clocks(silo_unix=NOW - 300, coordinator_unix=NOW)
    with pytest.raises(ClockSkew, match=r"2027-01-15 08:05:01 UTC.*2027-01-15 08:00:00 UTC.* 5 minutes ahead"):
        certificates.check_clocks(silo_unix=NOW + 301, coordinator_unix=NOW)
    with pytest.raises(ClockSkew, match="2 days behind"):
        certificates.check_clocks(silo_unix=NOW - 2 * DAY, coordinator_unix=NOW)
    with pytest.raises(ClockSkew, match="an impossible date"):
        certificates.check_clocks(silo_unix=9e18, coordinator_unix=NOW)


def test_keys_round_trip_and_damage_never_shows_the_key():
    key = certificates.make_key()
    pem = certificates.key_to_pem(key)
    assert certificates.key_to_pem(certificates.key_from_pem(pem)) == pem
    with pytest.raises(StorageDamaged) as caught:
        certificates.key_from_pem(pem[:-60], where="key.pem")
    assert pem.splitlines()[1].decode() not in caught.value.line()


def test_openssl_accepts_the_authority_as_a_root(authority):
    """A second opinion on the DER: Python's ssl module parses and stores it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=certificates.certificate_pem(authority[1]).decode())
    assert len(context.get_ca_certs()) == 1
