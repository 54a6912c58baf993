package main

import (
	"sync"

	"github.com/go-coord/coord/internal/zkproxy"
)

// outposts are proxies in front of the servers of a service other than ZooKeeper, for places that are
// away from the servers. The zero value is ready.
type outposts struct {
	mu      sync.Mutex
	proxies map[*place][]*zkproxy.Proxy
}

// at returns the addresses of the servers for clients at a place, with the delay of that place.
func (x *outposts) at(p *place, servers []string) ([]string, error) {
	if p.proxies == nil {
		return servers, nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.proxies[p] == nil {
		var proxies []*zkproxy.Proxy
		for _, a := range servers {
			q, err := zkproxy.NewRaw(a)
			if err != nil {
				for _, q := range proxies {
					q.Close()
				}
				return nil, err
			}
			q.SetDelay(p.oneWay, p.oneWay)
			proxies = append(proxies, q)
		}
		if x.proxies == nil {
			x.proxies = make(map[*place][]*zkproxy.Proxy)
		}
		x.proxies[p] = proxies
	}
	var addrs []string
	for _, q := range x.proxies[p] {
		addrs = append(addrs, q.Addr())
	}
	return addrs, nil
}

func (x *outposts) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, proxies := range x.proxies {
		for _, q := range proxies {
			q.Close()
		}
	}
	x.proxies = nil
}
