import torch

from ortolan.export.source.transformers.operators import Complex, erfinv, known_operators


def test_the_inverse_error_function_is_that_of_pytorch() -> None:
    x = torch.cat((torch.linspace(-0.99999, 0.99999, 2001), torch.tensor([0.0, 1e-6])))
    expected = torch.erfinv(x.double())
    torch.testing.assert_close(erfinv(x).double(), expected, rtol=1e-6, atol=1e-7)


def test_rotary_positions_by_complex_numbers_are_those_of_pytorch() -> None:
    def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        turn = torch.polar(torch.ones_like(angles), angles) * 1.5
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn.unsqueeze(1)[:, :, :5].to(x.device)).flatten(3)

    torch.manual_seed(0)
    x, angles = torch.randn(2, 3, 5, 8), torch.randn(2, 5, 4)
    expected = rotated(x, angles)
    with known_operators():
        assert isinstance(torch.polar(angles, angles), Complex)
        got = rotated(x, angles)
    torch.testing.assert_close(got, expected)


def test_numbers_in_the_code_become_tensors_of_their_type() -> None:
    values = [2, 0.5, True, [1, 2], [[0.5, 1.5]], []]
    expected = [torch.tensor(value) for value in values]
    with known_operators():
        got = [torch.tensor(value) for value in values]
        narrow = torch.tensor(0.25, dtype=torch.float16)
    assert all(torch.equal(g, e) and g.dtype == e.dtype for g, e in zip(got, expected, strict=True))
    assert narrow.dtype == torch.float16


def test_distributions_check_their_parameters_again_afterwards() -> None:
    checks = torch.distributions.Distribution._validate_args
    with known_operators():
        assert not torch.distributions.Distribution._validate_args
        assert torch.distributions.Normal(0, 1).icdf(torch.tensor(0.95)).item() > 1.6
    assert torch.distributions.Distribution._validate_args == checks
