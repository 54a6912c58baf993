package main

import (
	"fmt"
	"io"
	"net/url"

	"go.etcd.io/etcd/api/v3/version"
	"go.etcd.io/etcd/server/v3/embed"
)

// memberVerb as the first argument makes this command a member of an etcd cluster, so that a run
// needs no etcd that is installed. A member is a process of its own, as an installed one is: its
// processor time and its allocations are not those of the clients. Further arguments: its name,
// directory, client URL and peer URL, and the members of the cluster.
const memberVerb = "etcd-member"

// serveMember runs a member until the process is killed.
func serveMember(args []string, notes io.Writer) int {
	fail := func(err error) int {
		fmt.Fprintf(notes, "bench: %s: %v\n", memberVerb, err)
		return 1
	}
	if len(args) != 5 {
		return fail(fmt.Errorf("%d arguments, want 5", len(args)))
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = args[0], args[1]
	for i, to := range []*[]url.URL{&cfg.ListenClientUrls, &cfg.ListenPeerUrls} {
		u, err := url.Parse(args[2+i])
		if err != nil {
			return fail(err)
		}
		*to = []url.URL{*u}
	}
	cfg.AdvertiseClientUrls, cfg.AdvertisePeerUrls = cfg.ListenClientUrls, cfg.ListenPeerUrls
	cfg.InitialCluster, cfg.InitialClusterToken = args[4], clusterToken
	cfg.LogLevel = "error"
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return fail(err)
	}
	return fail(<-e.Err())
}

// embeddedVersion is the version of the server that is part of this command.
func embeddedVersion() string { return version.Version }
