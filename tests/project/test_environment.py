"""environment.yml, pyproject.toml and constraints.txt say the same, and the pip section installs."""

import tomllib

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from commands import interpreter
from paths import ROOT

GIVEN = {"pyro-ppl", "torch", "torchvision", "arviz", "numpy", "matplotlib"}


def environment() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def pip_section() -> list[str]:
    return next(entry["pip"] for entry in environment()["dependencies"] if isinstance(entry, dict))


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_names_the_given_packages_with_pyprojects_ranges():
    wanted = {r.name: r.specifier for r in map(Requirement, project()["dependencies"])}
    named = {
        r.name: r.specifier for r in map(Requirement, (p for p in pip_section() if not p.startswith("-e ")))
    }
    assert set(named) == GIVEN
    assert named == {name: wanted[name] for name in named}


def test_environment_installs_the_project_itself_and_what_its_commands_need():
    assert "-e .[experiments,report]" in pip_section()


def test_hydra_comes_with_the_experiments_and_not_with_the_library():
    extras = project()["optional-dependencies"]
    of_experiments = {Requirement(line).name for line in extras["experiments"]}
    assert of_experiments == {"hydra-core", "omegaconf"}
    assert not of_experiments & {Requirement(line).name for line in project()["dependencies"]}
    (dev,) = (wanted for line in extras["dev"] if (wanted := Requirement(line)).name == "pyrobbb")
    assert "experiments" in dev.extras


def test_environment_python_fits_pyproject():
    python = next(d for d in environment()["dependencies"] if isinstance(d, str) and d.startswith("python="))
    assert (
        Version(python.removeprefix("python=")) in Requirement(f"x{project()['requires-python']}").specifier
    )


def test_constraints_lie_within_pyprojects_ranges():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    needed = [*project()["dependencies"], *project()["optional-dependencies"]["experiments"]]
    needed += project()["optional-dependencies"]["report"]
    for wanted in map(Requirement, needed):
        versions = [str(pin.specifier).removeprefix("==") for pin in pins if pin.name == wanted.name]
        assert versions, f"{wanted.name} is not pinned in constraints.txt"
        assert all(Version(v) in wanted.specifier for v in versions), wanted


def test_pip_section_installs(tmp_path):
    """pip accepts the whole section as conda hands it over, and finds it satisfied or installable."""
    requirements = tmp_path / "condaenv.requirements.txt"
    requirements.write_text("\n".join(pip_section()).replace("-e .", f"-e {ROOT}"))
    files = ("-c", str(ROOT / "constraints.txt"), "-r", str(requirements))
    done = interpreter("-m", "pip", "install", "--dry-run", "--no-build-isolation", *files)
    assert "pyrobbb" in done.stdout
