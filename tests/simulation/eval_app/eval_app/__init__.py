"""Softmax regression on scikit-learn's digits, trained by SignDS and evaluated in private."""
