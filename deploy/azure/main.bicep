// What Lucius needs in Azure: a storage account with its tables and a container for artifacts, a Service Bus
// namespace with its topics and subscriptions, a store of App Configuration, an identity that may use all three
// and manage none, one for each service that may do what that service does, and a place for their logs.
// `lucius provision azure --check` says whether what is there fits.

targetScope = 'resourceGroup'

@description('Names begin with this; it must make the name of a storage account that no one else has taken.')
@minLength(3)
@maxLength(18)
param name string

param location string = resourceGroup().location

@description('What all our tables begin with: LUCIUS_TABLE_PREFIX. Small letters and digits, no z.')
@maxLength(16)
param tablePrefix string = 'lucius'

@description('The subscriptions of services, as `lucius provision azure --check` names them after the slash.')
param services array = [
  'embedding'
  'ocr'
  'sis'
]

@description('LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION')
param replySubscription string = 'lucius-invoker'

@description('LUCIUS_SERVICEBUS_SESSIONS: it cannot be changed once a subscription is there.')
param serviceBusSessions bool = false

@allowed([
  'Standard'
  'Premium'
])
param serviceBusTier string = 'Standard'

@description('The container of the storage account in which services keep what they make.')
@minLength(3)
@maxLength(63)
param workspaceContainer string = 'workspace'

@description('Deny: only networks and addresses that the account is told of afterwards reach it.')
@allowed([
  'Allow'
  'Deny'
])
param storageNetworkAccess string = 'Allow'

@description('How many days logs and metrics are kept.')
@minValue(30)
@maxValue(730)
param logRetentionDays int = 30

resource logs 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: '${name}-logs'
  location: location
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: logRetentionDays
  }
}

resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: '${name}-identity'
  location: location
}

module storage 'storage.bicep' = {
  name: '${name}-storage'
  params: {
    name: toLower(replace(name, '-', ''))
    location: location
    tablePrefix: tablePrefix
    workspaceContainer: workspaceContainer
    networkAccess: storageNetworkAccess
    principalId: identity.properties.principalId
    logs: logs.id
  }
}

module serviceBus 'service-bus.bicep' = {
  name: '${name}-service-bus'
  params: {
    name: '${name}-bus'
    location: location
    tier: serviceBusTier
    services: services
    replySubscription: replySubscription
    sessions: serviceBusSessions
    principalId: identity.properties.principalId
    logs: logs.id
  }
}

module configuration 'app-configuration.bicep' = {
  name: '${name}-configuration'
  params: {
    name: '${name}-configuration'
    location: location
    principalId: identity.properties.principalId
    logs: logs.id
  }
}

resource serviceIdentity 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = [for service in services: {
  name: '${name}-${service}'
  location: location
}]

module serviceAccess 'service-access.bicep' = [for (service, i) in services: {
  name: '${name}-${service}-access'
  params: {
    busName: serviceBus.outputs.name
    accountName: storage.outputs.accountName
    workspaceContainer: storage.outputs.workspaceContainer
    service: service
    principalId: serviceIdentity[i].properties.principalId
  }
}]

// LUCIUS_AZURE_CLIENT_ID of each service, in their order; beside it a service needs LUCIUS_AZURE_IDENTITY,
// LUCIUS_SERVICEBUS_NAMESPACE, LUCIUS_WORKSPACE_ROOT and LUCIUS_BLOB_CONNECTION from below, and no more.
output serviceClientIds array = [for (service, i) in services: {
  service: service
  clientId: serviceIdentity[i].properties.clientId
}]

// The settings of the other processes of Lucius, which run as one identity.
output LUCIUS_AZURE_IDENTITY string = 'managed'
output LUCIUS_AZURE_CLIENT_ID string = identity.properties.clientId
output LUCIUS_TABLE_CONNECTION string = storage.outputs.tableEndpoint
output LUCIUS_TABLE_PREFIX string = tablePrefix
output LUCIUS_BLOB_CONNECTION string = storage.outputs.blobEndpoint
output LUCIUS_WORKSPACE_ROOT string = storage.outputs.workspaceRoot
output LUCIUS_SERVICEBUS_NAMESPACE string = serviceBus.outputs.host
output LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION string = replySubscription
output LUCIUS_APP_CONFIGURATION_ENDPOINT string = configuration.outputs.endpoint
