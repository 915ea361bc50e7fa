"""The ArviZ writer and reader, on plain arrays: runs on both ArviZ generations, and needs no torch.

Run as a program, with the project on the path, it writes tests/support/files/posterior_<generation>.nc.
"""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from commands import interpreter
from paths import FILES, ROOT
from pyrobbb.evaluation import arviz_io

DATA = FILES
WEIGHTS = ["0.weight[12,33]", "0.bias[1]", "2.weight[0,0]"]
CHAINS, DRAWS, TRAIN, TEST = 2, 100, 20, 5
STORED_DRAWS = 10  # the files in tests/support/files stay small


def example(chains=CHAINS, draws=DRAWS):
    """What a run of Bayesian linear regression hands over: draws that are the exact posterior's."""
    rng = np.random.default_rng(1)
    y = rng.normal(0.5, 1.0, TRAIN)
    mean = rng.normal(y.mean(), TRAIN**-0.5, (chains, draws))
    weight = np.stack([mean, rng.normal(size=mean.shape), rng.normal(3, 0.1, mean.shape)], -1)
    noise = rng.normal(size=(chains, draws, TRAIN))
    return {
        "groups": {
            "posterior": {"weight": weight.astype(np.float32), "sigma": np.exp(0.1 * weight[..., 1])},
            "prior": {"weight": 5 * weight},
            "posterior_predictive": {"y": mean[..., None] + noise},
            "log_likelihood": {"y": -0.5 * (y - mean[..., None]) ** 2 - 0.5 * np.log(2 * np.pi)},
            "observed_data": {"y": y},
            "constant_data": {"x": np.linspace(0, 1, TRAIN)},
            "predictions": {"y": rng.normal(size=(chains, draws, TEST))},
            "predictions_constant_data": {"x": np.linspace(1, 2, TEST)},
            "variational": {"loc_mean": np.array([0.1, -0.2]), "snr_quantile": np.arange(6.0).reshape(2, 3)},
        },
        "coords": {"parameter": WEIGHTS, "layer": ["0.weight", "0.bias"], "quantile": [0.25, 0.5, 0.75]},
        "dims": {
            "weight": ["parameter"],
            "y": ["observation"],
            "x": ["observation"],
            "predictions/y": ["test_observation"],
            "predictions_constant_data/x": ["test_observation"],
            "loc_mean": ["layer"],
            "snr_quantile": ["layer", "quantile"],
        },
        "attrs": {"prior": "scale_mixture", "epochs": 10, "lr": 1e-3},
    }


@pytest.fixture(params=["made", "saved"])
def data(request, tmp_path):
    made = arviz_io.to_arviz(**example())
    if request.param == "made":
        return made
    arviz_io.save(made, tmp_path / "posterior.nc")
    return arviz_io.load(tmp_path / "posterior.nc")


@pytest.fixture
def az():
    """ArviZ, whose plots are closed afterwards."""
    import matplotlib.pyplot as plt

    plt.switch_backend("agg")
    yield arviz_io.import_arviz()
    plt.close("all")


def names(data):
    return set(data.groups()) if arviz_io.ARVIZ_GENERATION == 0 else set(data.children)


def test_the_summary_of_one_chain_is_silent(monkeypatch):
    one = example(chains=1)
    log, said = getattr(arviz_io.import_arviz(), "_log", logging.getLogger("arviz")), []
    monkeypatch.setattr(log, "callHandlers", lambda record: said.append(record.getMessage()))
    data = arviz_io.to_arviz(one["groups"], dims=one["dims"], coords=one["coords"])
    assert arviz_io.summary(data)["r_hat"].isna().all()
    assert np.isnan(arviz_io.r_hat(data, "weight")).all()
    assert said == []


def test_what_is_an_image_and_what_the_columns_of_a_table():
    pixels, columns = np.linspace(0, 16, 3 * 64).reshape(3, 64), np.linspace(-1, 1, 3 * 64).reshape(3, 64)
    assert arviz_io.images(pixels).shape == (3, 8, 8)
    assert arviz_io.images(np.full((3, 784), -0.4)).shape == (3, 28, 28)  # normalised
    for table in (columns, columns[:, :25], columns[:, :60], pixels[:, :16]):
        assert arviz_io.images(table) is None


def test_each_group_keeps_its_arrays_dims_and_labels(data):
    made = example()
    assert names(data) == set(made["groups"])
    for group, variables in made["groups"].items():
        assert set(data[group].data_vars) == set(variables)
        for name, array in variables.items():
            stored = data[group][name]
            np.testing.assert_array_equal(stored.values, array)
            assert stored.dtype == array.dtype
    assert data["posterior"]["weight"].dims == ("chain", "draw", "parameter")
    assert data["posterior"]["sigma"].dims == ("chain", "draw")
    assert data["predictions"]["y"].dims == ("chain", "draw", "test_observation")
    assert data["observed_data"]["y"].dims == ("observation",)
    assert data["variational"]["snr_quantile"].dims == ("layer", "quantile")
    assert list(data["posterior"]["parameter"].values) == WEIGHTS
    assert data["variational"]["snr_quantile"].sel(layer="0.bias", quantile=0.5) == 4.0
    assert list(data["posterior"]["chain"].values) == [0, 1]
    assert data.attrs["epochs"] == 10
    assert data.attrs["prior"] == "scale_mixture"


@pytest.mark.parametrize("generation", [0, 1])
def test_the_file_of_either_generation_opens_and_prints_its_summary(generation):
    data = arviz_io.load(DATA / f"posterior_{generation}.nc")
    other = arviz_io.load(DATA / f"posterior_{1 - generation}.nc")
    assert names(data) == set(example()["groups"])
    for group, dataset in arviz_io._datasets(data).items():
        assert dataset.equals(arviz_io._datasets(other)[group])
    table = arviz_io.summary(data, ["weight"])
    assert list(table.index) == [f"weight[{name}]" for name in WEIGHTS]
    assert table.loc["weight[2.weight[0,0]]", "mean"] == pytest.approx(3.0, abs=0.1)
    assert str(arviz_io.import_arviz().summary(data))


def test_arvizs_own_reader_opens_the_file(tmp_path, az):
    arviz_io.save(arviz_io.to_arviz(**example()), tmp_path / "posterior.nc")
    data = az.from_netcdf(tmp_path / "posterior.nc")
    np.testing.assert_array_equal(
        data["observed_data"]["y"].values, example()["groups"]["observed_data"]["y"]
    )
    data.close()


def test_a_file_that_arviz_wrote_again_still_loads(tmp_path):
    arviz_io.to_arviz(**example()).to_netcdf(str(tmp_path / "again.nc"), engine="h5netcdf")
    assert names(arviz_io.load(tmp_path / "again.nc")) == set(example()["groups"])


def test_summary_agrees_with_numpy_and_has_the_same_columns_everywhere(data):
    table = arviz_io.summary(data)
    weight = example()["groups"]["posterior"]["weight"]
    assert list(table.columns) == arviz_io.SUMMARY_COLUMNS
    assert len(table) == 4
    row = table.loc["weight[0.bias[1]]"]
    assert row["mean"] == pytest.approx(weight[..., 1].mean(), abs=1e-5)
    assert row["sd"] == pytest.approx(weight[..., 1].std(ddof=1), rel=1e-4)
    assert row["hdi_lower"] < row["mean"] < row["hdi_upper"]
    assert (49 / 50) ** 0.5 <= row["r_hat"] < 1.05  # of halves of 50 draws; the least there is
    inside = (weight[..., 1] >= row["hdi_lower"]) & (weight[..., 1] <= row["hdi_upper"])
    assert inside.mean() == pytest.approx(0.95, abs=0.011)
    assert list(arviz_io.summary(data, ["sigma"]).index) == ["sigma"]
    of_prior = arviz_io.summary(data, group="prior").loc["weight[2.weight[0,0]]"]
    assert of_prior["mean"] == pytest.approx(5 * weight[..., 2].mean(), rel=1e-5)
    with pytest.raises(ValueError, match=r"group must be one of .*posterior.*'prior_typo'"):
        arviz_io.summary(data, group="prior_typo")


def test_restarts_that_disagree_raise_r_hat():
    made = example()
    made["groups"]["posterior"]["weight"][1, :, 0] += 3
    data = arviz_io.to_arviz(**made)
    table = arviz_io.summary(data, ["weight"])
    assert table["r_hat"].iloc[0] > 1.5
    assert table["r_hat"].iloc[1] < 1.05
    np.testing.assert_allclose(arviz_io.r_hat(data, "weight").ravel(), table["r_hat"])


def test_one_chain_and_draws_that_never_vary_have_a_summary():
    one = arviz_io.summary(arviz_io.to_arviz(**example(chains=1)))
    assert one["r_hat"].isna().all()
    assert one["sd"].notna().all()
    made = example()
    made["groups"]["posterior"] = {"weight": np.full((2, 50, 3), 0.3)}
    still = arviz_io.summary(arviz_io.to_arviz(**made))
    assert (still["sd"] < 1e-12).all()
    np.testing.assert_allclose(still["mean"], 0.3)


@pytest.mark.parametrize("chains", [1, 2])
def test_loo_is_close_to_the_exact_one(az, chains):
    """For y_i ~ N(mu, 1) and a flat prior, p(y_i | the others) = N(mean of the others, 1 + 1/(n-1))."""
    made = example(chains, draws=4000)
    y = made["groups"]["observed_data"]["y"]
    others = (y.sum() - y) / (TRAIN - 1)
    variance = 1 + 1 / (TRAIN - 1)
    exact = (-0.5 * (y - others) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)).sum()
    loo = az.loo(arviz_io.to_arviz(**made))
    value = loo.elpd_loo if arviz_io.ARVIZ_GENERATION == 0 else loo.elpd
    assert value == pytest.approx(exact, abs=0.3)
    assert "elpd_loo" in str(loo)


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    path = tmp_path / "posterior.nc"
    arviz_io.save(arviz_io.to_arviz(**example()), path)
    before = path.read_bytes()
    bad = arviz_io.to_arviz(**example())
    datasets = arviz_io._datasets(bad)
    last = list(datasets)[-1]
    datasets[last] = datasets[last].assign(y=("observation", np.array([object()] * TRAIN)))
    monkeypatch.setattr(arviz_io, "_datasets", lambda data: datasets)
    with pytest.raises((TypeError, ValueError)):
        arviz_io.save(bad, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_over_a_loaded_file_works(tmp_path):
    path = tmp_path / "posterior.nc"
    arviz_io.save(arviz_io.to_arviz(**example()), path)
    data = arviz_io.load(path)
    arviz_io.save(data, path)
    np.testing.assert_array_equal(arviz_io.load(path)["posterior"]["weight"], data["posterior"]["weight"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.nc"):
        arviz_io.load(tmp_path / "nowhere.nc")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_cut_file_is_named(tmp_path, share):
    whole = (DATA / "posterior_1.nc").read_bytes()
    path = tmp_path / "cut.nc"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match=rf"cut\.nc cannot be read .* {path.stat().st_size} bytes"):
        arviz_io.load(path)


def test_with_its_checksum_a_file_is_the_one_that_was_saved(tmp_path):
    """Another fit's is refused, and so is one changed byte where HDF5 has no checksum."""
    path = tmp_path / "posterior.nc"
    made = example()
    checksum = arviz_io.save(arviz_io.to_arviz(**made), path)
    arviz_io.load(path, checksum)
    whole = path.read_bytes()
    place = whole.index(made["groups"]["observed_data"]["y"].tobytes())
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    arviz_io.load(path)
    with pytest.raises(ValueError, match=r"posterior\.nc is not the file that this run wrote"):
        arviz_io.load(path, checksum)


def test_damaged_and_foreign_files_are_named(tmp_path):
    whole = bytearray((DATA / "posterior_1.nc").read_bytes())
    whole[200:-200] = b"\x55" * (len(whole) - 400)
    for name, content in (("damaged.nc", bytes(whole)), ("foreign.nc", b"epoch,loss\n0,1.5\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name} cannot be read as a posterior"):
            arviz_io.load(tmp_path / name)
    data = arviz_io.to_arviz(**example())
    del data.attrs["inference_library"]
    arviz_io.save(data, tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"other\.nc is a netCDF4 file that pyrobbb did not write"):
        arviz_io.load(tmp_path / "other.nc")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"groups": {"posteriors": {"a": np.zeros((1, 2))}}},
            "groups has 'posteriors'; known are posterior,",
        ),
        ({"groups": {"posterior": {"a": np.zeros((1, 2, 3))}}}, r"'a'.*\('chain', 'draw'\)"),
        ({"groups": {"posterior": {"weight": np.zeros((1, 2))}}}, "'weight'.*'parameter'"),
        ({"groups": {"posterior": {"weight": np.zeros((1, 2, 4))}}}, "sizes for dimension 'parameter'"),
        ({"groups": {"posterior": {"a": np.zeros((2, 5)), "b": np.zeros((2, 6))}}}, "dimension 'draw'"),
        ({"groups": {"prior": {"a/b": np.zeros((1, 2))}}}, "or contain '/'"),
        (
            {"groups": {"posterior": {"w": np.zeros((1, 2, 3))}}, "dims": {"w": ["w"]}, "coords": {}},
            "no axis",
        ),
    ],
)
def test_bad_input_gets_one_clear_error(change, message):
    with pytest.raises(ValueError, match=message):
        arviz_io.to_arviz(**{**example(), **change})


def test_half_precision_becomes_single(tmp_path):
    data = arviz_io.to_arviz({"posterior": {"w": np.ones((1, 4), np.float16)}}, dims={})
    arviz_io.save(data, tmp_path / "half.nc")
    assert arviz_io.load(tmp_path / "half.nc")["posterior"]["w"].dtype == np.float32


def test_importing_is_light_and_arvizs_first_import_of_the_day_tells_nobody(tmp_path):
    heavy = "{'torch', 'pyro', 'arviz', 'matplotlib.pyplot'}"
    code = "import logging, sys; from pyrobbb.evaluation.arviz_io import *; "
    code += f"print({heavy} & set(sys.modules)); logging.basicConfig(level='INFO', stream=sys.stdout); "
    code += "import_arviz(); print(logging.root.manager.disable)"
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    assert interpreter("-W", "error::FutureWarning", "-c", code, **home).stdout.split() == ["set()", "0"]


if __name__ == "__main__":
    made = arviz_io.to_arviz(**example(draws=STORED_DRAWS))
    arviz_io.save(made, DATA / f"posterior_{arviz_io.ARVIZ_GENERATION}.nc")


def test_arviz_is_imported_without_a_home_that_can_be_written():
    code = "import os; from pyrobbb.evaluation import arviz_io; arviz_io.import_arviz(); print(*os.environ)"
    env = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    env |= {"HOME": "/dev/null", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "XDG_CACHE_HOME" not in done.stdout
