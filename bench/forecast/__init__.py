"""How good the forecasts are on recorded traces, beside simple rules and statsforecast, against the goals set for them."""
