//go:build linux

package etcd_test

import "testing"

// Each recipe with a fault at each of its requests. The run of internal/chaos has all recipes in its short form too.
func TestEveryRecipeStandsAFaultAtEachOfItsRequestsOnEtcd(t *testing.T) {
	t.Parallel()
	etcdModule.Sweep(t)
}
