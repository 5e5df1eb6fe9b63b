# shellcheck shell=bash
# Makes the cluster's CA, certificates and kubeconfigs in $PKI: under a second, ECDSA, kept between runs. Sourced by lc.

make_pki() {
  [ ! -e "$PKI/.made" ] || return 0
  rm -rf "$PKI"
  mkdir -p "$PKI"
  (
    set -e
    cd "$PKI"
    umask 077
    local i user
    pki_ca ca
    pki_ca front-proxy-ca
    pki_key sa
    openssl ec -in sa.key -pubout -out sa.pub 2>/dev/null
    pki_cert apiserver ca /CN=kube-apiserver serverAuth \
      "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$NET.1,IP:$SVC.0.1"
    pki_cert apiserver-kubelet-client ca /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
    pki_cert front-proxy-client front-proxy-ca /CN=front-proxy-client clientAuth
    for user in admin:/O=system:masters/CN=admin controller-manager:/CN=system:kube-controller-manager \
      scheduler:/CN=system:kube-scheduler proxy:/CN=system:kube-proxy; do
      pki_cert "${user%%:*}" ca "${user#*:}" clientAuth
      pki_kubeconfig "${user%%:*}"
    done
    for i in $(seq "$MAX_NODES"); do
      pki_cert "node$i" ca "/O=system:nodes/CN=system:node:node$i" clientAuth,serverAuth "DNS:node$i,IP:$(node_ip "$i"),IP:127.0.0.1"
      pki_kubeconfig "node$i"
    done
    : >.made
  )
}

pki_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"; }

pki_ca() {
  pki_key "$1"
  openssl req -x509 -new -key "$1.key" -days 3650 -subj "/CN=$1" -out "$1.crt" \
    -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature
}

# pki_cert NAME CA SUBJECT USAGE [ALT-NAMES]
pki_cert() {
  pki_key "$1"
  {
    echo "basicConstraints=critical,CA:FALSE"
    echo "keyUsage=critical,digitalSignature"
    echo "extendedKeyUsage=$4"
    [ -z "${5:-}" ] || echo "subjectAltName=$5"
  } >"$1.ext"
  openssl req -new -key "$1.key" -subj "$3" | openssl x509 -req -CA "$2.crt" -CAkey "$2.key" -CAcreateserial \
    -days 3650 -extfile "$1.ext" -out "$1.crt" 2>/dev/null
}

# pki_kubeconfig NAME: NAME.conf, which speaks to the API server with the certificate NAME.
pki_kubeconfig() {
  cat >"$1.conf" <<Y
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "$API", certificate-authority-data: $(base64 -w0 <ca.crt)}}]
users: [{name: user, user: {client-certificate-data: $(base64 -w0 <"$1.crt"), client-key-data: $(base64 -w0 <"$1.key")}}]
contexts: [{name: local, context: {cluster: local, user: user}}]
current-context: local
Y
}
