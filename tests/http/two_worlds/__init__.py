"""Two tenants that differ only in what a narrow grant does not cover, and requests that compare them."""
