package zookeeper_test

import (
	"context"
	"crypto/tls"
	"log"
	"log/slog"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
)

// An ensemble that is reached over TLS. The example needs its servers, so it is compiled and
// not run.
func ExampleNew() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second) // bounds the opening only
	defer cancel()
	b := zookeeper.New([]string{"zk1:2281", "zk2:2281", "zk3:2281"}, &zookeeper.Options{
		SessionTimeout: 15 * time.Second,
		TLS:            &tls.Config{MinVersion: tls.VersionTLS12}, // and certificates
		Logger:         slog.Default(),
	})
	c, err := coord.Open(ctx, b, &coord.Options{Namespace: "/billing", Logger: slog.Default()})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	// A recipe made with c uses paths below /billing: "/lock" is the node /billing/lock.
}
