package postgres_test

import "testing"

// Each recipe with a fault at each of its requests.
func TestSweep(t *testing.T) {
	t.Parallel()
	module.Sweep(t, "COORD_POSTGRES_SERVER="+shared.Get(t).Addr())
}
