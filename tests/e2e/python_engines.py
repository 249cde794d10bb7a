"""One small engine for all tests of a class, for the tests of the Python package."""

import common
import python_case

python_case.prepare()
from deepinfer import LLM, SamplingParams  # noqa: E402

NANO, TINY = common.NANO, common.TINY
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logits_hash=True)


class Engines(common.Case):
    """One small engine for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(NANO, max_model_len=512)

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def refused(self, kind, param, says, call, *arguments, **named):
        with self.assertRaises(kind) as caught:
            call(*arguments, **named)
        self.assertIn(says, str(caught.exception))
        if param is not None:
            self.assertEqual(caught.exception.param, param)
