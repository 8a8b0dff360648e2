"""The endpoints of OpenAI's HTTP API: requests read strictly, answers and errors in its shapes."""
