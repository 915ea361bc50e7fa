"""Contextual bandits (paper section 5.3): environments, agents, and the loop that plays them."""

from pyrobbb.bandits.agent import Agent
from pyrobbb.bandits.batched import MeanFieldLearner, PointLearner
from pyrobbb.bandits.environment import Environment, Round
from pyrobbb.bandits.heads import HeadPerAction
from pyrobbb.bandits.learner import Learner
from pyrobbb.bandits.mushroom import Mushroom
from pyrobbb.bandits.play import Games, Play
from pyrobbb.bandits.replay import Replay
from pyrobbb.bandits.rules import EpsilonGreedy, ThompsonSampling

__all__ = [
    "Agent",
    "Environment",
    "EpsilonGreedy",
    "Games",
    "HeadPerAction",
    "Learner",
    "MeanFieldLearner",
    "Mushroom",
    "Play",
    "PointLearner",
    "Replay",
    "Round",
    "ThompsonSampling",
]
