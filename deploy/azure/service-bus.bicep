// A namespace with 16 lanes of directives and 16 of replies. Each service has a subscription to every lane,
// which takes what bears its name; the replies have one that takes everything.

param name string
param location string
param tier string
param services array
param replySubscription string
param sessions bool
param principalId string
param logs string

@description('LUCIUS_SERVICEBUS_MAX_DELIVERIES')
param deliveriesMax int = 10
param lockDuration string = 'PT30S'
param duplicateWindow string = 'PT10M'

var lanes = 16

// Azure Service Bus Data Sender, Azure Service Bus Data Receiver
var roles = [
  '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
  '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
]

resource namespace 'Microsoft.ServiceBus/namespaces@2021-11-01' = {
  name: name
  location: location
  sku: {
    name: tier
    tier: tier
  }
  properties: {
    disableLocalAuth: true
  }
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2021-11-01' = [for lane in range(0, lanes): {
  parent: namespace
  name: 'global-bus-p${lane}'
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: duplicateWindow
  }
}]

resource replyTopic 'Microsoft.ServiceBus/namespaces/topics@2021-11-01' = [for lane in range(0, lanes): {
  parent: namespace
  name: 'global-bus-replies-p${lane}'
  properties: {
    requiresDuplicateDetection: true
    duplicateDetectionHistoryTimeWindow: duplicateWindow
  }
}]

// One service after the other, so that no two changes of one topic cross each other.
@batchSize(16)
resource subscription 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2021-11-01' = [for i in range(0, lanes * length(services)): {
  parent: topic[i % lanes]
  name: services[i / lanes]
  properties: {
    lockDuration: lockDuration
    maxDeliveryCount: deliveriesMax
    deadLetteringOnMessageExpiration: true
    requiresSession: sessions
  }
}]

// By the name of the rule that every new subscription has: it takes that rule's place.
@batchSize(16)
resource rule 'Microsoft.ServiceBus/namespaces/topics/subscriptions/rules@2021-11-01' = [for i in range(0, lanes * length(services)): {
  parent: subscription[i]
  name: '$Default'
  properties: {
    filterType: 'CorrelationFilter'
    correlationFilter: {
      properties: {
        service: services[i / lanes]
      }
    }
  }
}]

resource replies 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2021-11-01' = [for lane in range(0, lanes): {
  parent: replyTopic[lane]
  name: replySubscription
  properties: {
    lockDuration: lockDuration
    maxDeliveryCount: deliveriesMax
    deadLetteringOnMessageExpiration: true
    requiresSession: sessions
  }
}]

resource mayUseBus 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in roles: {
  name: guid(namespace.id, principalId, role)
  scope: namespace
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
  }
}]

// Operations are what is done to topics and subscriptions; messages are in the metrics alone.
resource busLogs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  name: 'lucius'
  scope: namespace
  properties: {
    workspaceId: logs
    logs: [
      {
        category: 'OperationalLogs'
        enabled: true
      }
    ]
    metrics: [
      {
        category: 'AllMetrics'
        enabled: true
      }
    ]
  }
}

output name string = namespace.name
output host string = '${namespace.name}.servicebus.windows.net'
