package etcd_test

import (
	"math"
	"testing"

	"github.com/go-coord/coord/backend/etcd"
)

// A session whose containers stay for ever opens, and its search for others does not panic.
func TestEtcd_ContainersThatStayForEver(t *testing.T) {
	t.Parallel()
	s, err := etcd.New([]string{shared.get(t)}, &etcd.Options{ContainerInterval: math.MaxInt64, Prefix: "for-ever"}).Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
