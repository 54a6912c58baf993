package zktest

import "strconv"

// TLSOptions select the files for the servers' TLS ports. The files are PEM, JKS or PKCS #12,
// according to their suffix: .pem, .jks, .p12. A PEM key store holds the private key and the
// certificate chain.
type TLSOptions struct {
	KeyStore      string
	KeyPassword   string
	TrustStore    string
	TrustPassword string
	// ClientAuth is "need" (the default), "want" or "none".
	ClientAuth string
}

func (t *TLSOptions) configure(cfg map[string]string, port int) {
	cfg["serverCnxnFactory"] = "org.apache.zookeeper.server.NettyServerCnxnFactory"
	cfg["secureClientPort"] = strconv.Itoa(port)
	cfg["secureClientPortAddress"] = "127.0.0.1"
	cfg["ssl.keyStore.location"] = t.KeyStore
	cfg["ssl.keyStore.password"] = t.KeyPassword
	cfg["ssl.trustStore.location"] = t.TrustStore
	cfg["ssl.trustStore.password"] = t.TrustPassword
	cfg["ssl.clientAuth"] = "need"
	if t.ClientAuth != "" {
		cfg["ssl.clientAuth"] = t.ClientAuth
	}
}
